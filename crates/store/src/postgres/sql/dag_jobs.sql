-- name: dag_jobs_delete
-- Only jobs that nothing else is kept about.
DELETE FROM dag_jobs j
WHERE job_id = ANY($1)
  AND NOT EXISTS (SELECT 1 FROM edge_cursors e WHERE e.job_id = j.job_id)
  AND NOT EXISTS (SELECT 1 FROM edge_partitions e WHERE e.job_id = j.job_id)
  AND NOT EXISTS (SELECT 1 FROM invalidation_dependents d WHERE d.job_id = j.job_id)

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
SELECT job_id FROM dag_jobs WHERE org = $1 AND job_id <> ALL($2) ORDER BY job_id LIMIT $3
