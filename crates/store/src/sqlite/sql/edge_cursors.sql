-- name: edge_cursors_advance
INSERT INTO edge_cursors (job_id, version_id, value) VALUES (?1, ?2, ?3)
ON CONFLICT (job_id, version_id) DO UPDATE SET value = excluded.value WHERE edge_cursors.value < excluded.value

-- name: edge_cursors_delete
DELETE FROM edge_cursors WHERE job_id = ?1 AND version_id IN (
    SELECT c.version_id FROM edge_cursors c WHERE c.job_id = ?1 LIMIT ?2)

-- name: edge_cursors_of_job
SELECT version_id, value FROM edge_cursors WHERE job_id = ?1 AND version_id = ?2

-- name: edge_cursors_of_jobs
SELECT job_id, version_id, value FROM edge_cursors WHERE job_id = ?1 ORDER BY version_id
