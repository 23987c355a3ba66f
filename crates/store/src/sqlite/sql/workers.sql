-- name: workers_get
SELECT incarnation FROM workers WHERE worker_id = ?

-- name: workers_prune
DELETE FROM workers WHERE worker_id IN (SELECT worker_id FROM workers WHERE seen_at < ? LIMIT ?)

-- name: workers_put
INSERT OR REPLACE INTO workers (worker_id, incarnation, seen_at) VALUES (?, ?, ?)
