-- name: meta_alive
UPDATE meta SET alive_at = ?, grace_until = ?, gap_ended_at = ?

-- name: meta_get
SELECT alive_at, grace_until, gap_ended_at FROM meta

-- name: meta_reserve
UPDATE meta SET next_number = next_number + ? RETURNING next_number
