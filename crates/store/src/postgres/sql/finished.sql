-- name: finished_dead_count
SELECT count(*) FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > $1
  AND ($2::int IS NULL OR f.queue_id = $2)
  AND ($3::text IS NULL OR b.operator = $3)
  AND ($4::text IS NULL OR f.reason = $4)
  AND ($5::text IS NULL OR f.error_code = $5)
  AND ($6::text IS NULL OR b.tenant = $6)
  AND ($7::timestamptz IS NULL OR f.dead_lettered_at >= $7)
  AND ($8::timestamptz IS NULL OR f.dead_lettered_at < $8)
  AND ($9::bigint[] IS NULL OR f.seq = ANY($9))
  AND ($10::text IS NULL OR b.owner = $10)

-- name: finished_dead_list
SELECT f.seq FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > $1
  AND ($2::int IS NULL OR f.queue_id = $2)
  AND ($3::text IS NULL OR b.operator = $3)
  AND ($4::text IS NULL OR f.reason = $4)
  AND ($5::text IS NULL OR f.error_code = $5)
  AND ($6::text IS NULL OR b.tenant = $6)
  AND ($7::timestamptz IS NULL OR f.dead_lettered_at >= $7)
  AND ($8::timestamptz IS NULL OR f.dead_lettered_at < $8)
  AND ($9::bigint[] IS NULL OR f.seq = ANY($9))
  AND ($10::text IS NULL OR b.owner = $10)
ORDER BY f.seq LIMIT $11

-- name: finished_delete
DELETE FROM finished WHERE seq = ANY($1)

-- name: finished_get
SELECT f.seq, f.queue_id, f.ended, f.finished_at, f.result, f.failure, f.stack, f.error_code, f.reason, f.dead_lettered_at,
    f.cancel_reason, f.attempt, f.fence, f.attempt_id, f.token, f.worker_id, f.granted_at, f.last_heartbeat_at,
    f.ended_at, f.attempt_state, f.attempt_reason, f.receipt, f.more, b.id, b.spec
FROM finished f JOIN bodies b ON b.seq = f.seq WHERE f.seq = ANY($1)

-- name: finished_insert
INSERT INTO finished (seq, queue_id, ended, finished_at, result, failure, stack, error_code, reason, dead_lettered_at,
    cancel_reason, attempt, fence, attempt_id, token, worker_id, granted_at, last_heartbeat_at, ended_at,
    attempt_state, attempt_reason, receipt, deliveries, started_at, more)
SELECT unnest($1::bigint[]), unnest($2::int[]), unnest($3::smallint[]), unnest($4::timestamptz[]),
    unnest($5::text[]), unnest($6::text[]), unnest($7::text[]), unnest($8::text[]), unnest($9::text[]),
    unnest($10::timestamptz[]), unnest($11::text[]), unnest($12::int[]), unnest($13::bigint[]), unnest($14::uuid[]),
    unnest($15::uuid[]), unnest($16::text[]), unnest($17::timestamptz[]), unnest($18::timestamptz[]),
    unnest($19::timestamptz[]), unnest($20::smallint[]), unnest($21::smallint[]), unnest($22::smallint[]),
    unnest($23::int[]), unnest($24::timestamptz[]), unnest($25::text[])

-- name: finished_insert_plain
-- For attempts that ended without failure, heartbeat or cancel: the omitted columns are null.
INSERT INTO finished (seq, queue_id, ended, finished_at, result, attempt, fence, attempt_id, token, worker_id,
    granted_at, attempt_state, attempt_reason, receipt)
SELECT unnest($1::bigint[]), unnest($2::int[]), unnest($3::smallint[]), unnest($4::timestamptz[]),
    unnest($5::text[]), unnest($6::int[]), unnest($7::bigint[]), unnest($8::uuid[]), unnest($9::uuid[]),
    unnest($10::text[]), unnest($11::timestamptz[]), unnest($12::smallint[]), unnest($13::smallint[]),
    unnest($14::smallint[])

-- name: finished_lock
SELECT f.seq, f.queue_id, f.ended, f.finished_at, f.result, f.failure, f.stack, f.error_code, f.reason, f.dead_lettered_at,
    f.cancel_reason, f.attempt, f.fence, f.attempt_id, f.token, f.worker_id, f.granted_at, f.last_heartbeat_at,
    f.ended_at, f.attempt_state, f.attempt_reason, f.receipt, f.more, b.id, b.spec
FROM finished f JOIN bodies b ON b.seq = f.seq WHERE f.seq = ANY($1) ORDER BY f.seq FOR UPDATE OF f

-- name: finished_prune_candidates
SELECT f.seq, f.finished_at, f.dead_lettered_at, f.queue_id, b.created_at, b.idempotency_key IS NOT NULL AS has_key,
    b.run_id IS NOT NULL AS in_run
FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.seq > $1 ORDER BY f.seq LIMIT $2
FOR UPDATE OF f SKIP LOCKED

-- name: finished_result_sizes
SELECT seq, octet_length(result) FROM finished WHERE seq = ANY($1) AND result IS NOT NULL

-- name: finished_results
SELECT seq, result FROM finished WHERE seq = ANY($1)
