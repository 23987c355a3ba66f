-- name: dag_jobs_busy
SELECT j.job_id FROM dag_jobs j JOIN queue_counts c ON c.queue_id = j.queue_id
WHERE j.job_id = ?1 AND c.blocked + c.scheduled + c.ready + c.running > 0

-- name: dag_jobs_counts
SELECT c.blocked, c.scheduled, c.ready, c.running, c.finished, c.dead_lettered
FROM dag_jobs j JOIN queue_counts c ON c.queue_id = j.queue_id WHERE j.job_id = ?1

-- name: dag_jobs_delete
-- Only a job that nothing else is kept about. Its queue goes with it.
DELETE FROM dag_jobs
WHERE job_id = ?1
  AND NOT EXISTS (SELECT 1 FROM edge_cursors e WHERE e.job_id = ?1)
  AND NOT EXISTS (SELECT 1 FROM edge_partitions e WHERE e.job_id = ?1)
  AND NOT EXISTS (SELECT 1 FROM invalidation_dependents d WHERE d.job_id = ?1)
RETURNING queue_id

-- name: dag_jobs_insert
INSERT INTO dag_jobs (job_id, org, dag, name, definition, queue_id)
SELECT ?1, ?2, ?3, ?4, ?5, q.queue_id FROM queues q WHERE q.name = ?6
ON CONFLICT DO NOTHING

-- name: dag_jobs_of_ids
SELECT j.job_id, j.org, j.dag, j.name, j.definition, q.name
FROM dag_jobs j JOIN queue_names q ON q.queue_id = j.queue_id WHERE j.job_id = ?1

-- name: dag_jobs_unnamed
-- Those with tasks stay, also if the tasks have ended.
SELECT j.job_id FROM dag_jobs j
WHERE j.org = ?1 AND j.job_id NOT IN (SELECT value FROM json_each(?2))
  AND NOT EXISTS (SELECT 1 FROM bodies b
                  WHERE b.tenant = j.org AND b.workspace = 'job:' || j.job_id AND b.idempotency_key IS NOT NULL)
ORDER BY j.job_id LIMIT ?3
