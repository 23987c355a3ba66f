-- name: proven_workers_after
SELECT worker_id, until FROM proven_workers WHERE until > ?1 ORDER BY until DESC LIMIT ?2

-- name: proven_workers_prune
DELETE FROM proven_workers WHERE worker_id IN (SELECT worker_id FROM proven_workers WHERE until <= ? LIMIT ?)

-- name: proven_workers_put
INSERT INTO proven_workers (worker_id, until) VALUES (?, ?)
ON CONFLICT (worker_id) DO UPDATE SET until = max(until, excluded.until)
