-- name: workers_get
SELECT worker_id, incarnation FROM workers WHERE worker_id = ANY($1) ORDER BY worker_id FOR UPDATE

-- name: workers_prune
DELETE FROM workers WHERE worker_id IN (SELECT worker_id FROM workers WHERE seen_at < $1 LIMIT $2)
    AND seen_at < $1

-- name: workers_put
INSERT INTO workers (worker_id, incarnation, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET incarnation = excluded.incarnation, seen_at = excluded.seen_at
WHERE workers.incarnation <= excluded.incarnation
