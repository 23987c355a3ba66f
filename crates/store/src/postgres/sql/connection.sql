-- name: clock
SELECT clock_timestamp()

-- name: listen
LISTEN tenure;
SHOW transaction_read_only

-- name: notify
SELECT pg_notify('tenure', $1)

-- name: session
-- The plans are simple: compiling them costs more than running them.
SET jit = off;
SET statement_timeout = '10s';
SET lock_timeout = '5s';
SET idle_in_transaction_session_timeout = '60s'

-- name: session_batches
-- A plan is kept for as long as its connection lives. A plan made while a table was empty would scan the whole table
-- and keep doing so when it is full. Every statement of a batch has an index and must use it. Plans are generic,
-- because plans made for the parameters of one moment turned out worse.
SET enable_seqscan = off;
SET plan_cache_mode = force_generic_plan

-- name: session_notices
-- A notice is a hint, so its commit does not wait for the disk.
SET synchronous_commit = off

-- name: setting
SELECT setting FROM pg_settings WHERE name = $1
