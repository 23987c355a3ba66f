-- name: edge_cursors_advance
INSERT INTO edge_cursors AS c (job_id, version_id, value)
SELECT job_id, version_id, value FROM unnest($1::bigint[], $2::uuid[], $3::bigint[]) AS v (job_id, version_id, value)
ORDER BY job_id, version_id
ON CONFLICT (job_id, version_id) DO UPDATE SET value = excluded.value WHERE c.value < excluded.value

-- name: edge_cursors_delete
DELETE FROM edge_cursors WHERE (job_id, version_id) IN (
    SELECT c.job_id, c.version_id FROM edge_cursors c WHERE c.job_id = ANY($1) LIMIT $2)

-- name: edge_cursors_of_job
SELECT version_id, value FROM edge_cursors WHERE job_id = $1 AND version_id = ANY($2) ORDER BY version_id

-- name: edge_cursors_of_jobs
SELECT job_id, version_id, value FROM edge_cursors WHERE job_id = ANY($1) ORDER BY job_id, version_id
