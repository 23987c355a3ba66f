-- name: meta_alive
UPDATE meta SET alive_at = $1, grace_until = $2, gap_ended_at = $3

-- name: meta_get
SELECT clock_timestamp(), alive_at, grace_until, gap_ended_at FROM meta

-- name: meta_lock
SELECT clock_timestamp(), alive_at, grace_until, gap_ended_at FROM meta FOR UPDATE

-- name: meta_reserve
UPDATE meta SET next_number = next_number + $1 RETURNING next_number
