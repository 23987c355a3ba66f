-- name: proven_workers_after
SELECT worker_id, until FROM proven_workers WHERE until > $1 ORDER BY until DESC LIMIT $2

-- name: proven_workers_prune
DELETE FROM proven_workers
WHERE worker_id IN (SELECT worker_id FROM proven_workers WHERE until <= $1 LIMIT $2) AND until <= $1
RETURNING 1

-- name: proven_workers_put
INSERT INTO proven_workers (worker_id, until) SELECT w.worker_id, $2 FROM unnest($1::text[]) AS w (worker_id)
ORDER BY w.worker_id
ON CONFLICT (worker_id) DO UPDATE SET until = greatest(proven_workers.until, excluded.until)
