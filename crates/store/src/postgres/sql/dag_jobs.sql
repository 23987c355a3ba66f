-- name: dag_jobs_busy
SELECT j.job_id FROM dag_jobs j
WHERE j.job_id = ANY($1)
  AND (SELECT sum(c.blocked + c.scheduled + c.ready + c.running) FROM queue_counts c WHERE c.queue_id = j.queue_id) > 0

-- name: dag_jobs_counts
SELECT j.job_id, sum(c.blocked)::bigint, sum(c.scheduled)::bigint, sum(c.ready)::bigint, sum(c.running)::bigint,
       sum(c.finished)::bigint, sum(c.dead_lettered)::bigint
FROM dag_jobs j JOIN queue_counts c ON c.queue_id = j.queue_id WHERE j.job_id = ANY($1) GROUP BY j.job_id

-- name: dag_jobs_delete
-- Only jobs that nothing else is kept about, and their queues.
WITH gone AS (
    DELETE FROM dag_jobs j
    WHERE job_id = ANY($1)
      AND NOT EXISTS (SELECT 1 FROM edge_cursors e WHERE e.job_id = j.job_id)
      AND NOT EXISTS (SELECT 1 FROM edge_partitions e WHERE e.job_id = j.job_id)
      AND NOT EXISTS (SELECT 1 FROM invalidation_dependents d WHERE d.job_id = j.job_id)
    RETURNING queue_id
), counts AS (
    DELETE FROM queue_counts c USING gone g WHERE c.queue_id = g.queue_id
)
DELETE FROM queues q USING gone g WHERE q.queue_id = g.queue_id

-- name: dag_jobs_insert
INSERT INTO dag_jobs (job_id, org, dag, name, definition, queue_id)
SELECT v.job_id, $1, v.dag, v.name, v.definition, q.queue_id
FROM unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[]) AS v (job_id, dag, name, definition, queue)
JOIN queues q ON q.name = v.queue
ON CONFLICT DO NOTHING

-- name: dag_jobs_of_ids
SELECT j.job_id, j.org, j.dag, j.name, j.definition, q.name
FROM dag_jobs j JOIN queue_names q ON q.queue_id = j.queue_id WHERE j.job_id = ANY($1)

-- name: dag_jobs_unnamed
-- Those with tasks stay, also if the tasks have ended.
SELECT j.job_id FROM dag_jobs j
WHERE j.org = $1 AND j.job_id <> ALL($2)
  AND NOT EXISTS (SELECT 1 FROM bodies b
                  WHERE b.tenant = j.org AND b.workspace = 'job:' || j.job_id AND b.idempotency_key IS NOT NULL)
ORDER BY j.job_id LIMIT $3
