-- name: meta_alive
UPDATE meta SET alive_at = $1, grace_until = $2

-- name: meta_get
SELECT clock_timestamp(), alive_at, grace_until FROM meta

-- name: meta_lock
SELECT clock_timestamp(), alive_at, grace_until FROM meta FOR UPDATE

-- name: meta_reserve
UPDATE meta SET next_number = next_number + $1 RETURNING next_number
