-- name: dependents_delete
DELETE FROM invalidation_dependents WHERE (invalidation_id, job_id) IN (
    SELECT d.invalidation_id, d.job_id FROM invalidation_dependents d WHERE d.job_id = ?1 LIMIT ?2)

-- name: dependents_delete_of_versions
-- Those of the invalidations that `invalidations_delete` removes.
DELETE FROM invalidation_dependents WHERE invalidation_id IN (
    SELECT i.invalidation_id FROM data_invalidations i WHERE i.version_id = ?1 ORDER BY i.invalidation_id LIMIT ?2)

-- name: dependents_done
-- A task may be done before its invalidation is marked as routed.
INSERT INTO invalidation_dependents (invalidation_id, job_id, done_at) VALUES (?1, ?2, ?3)
ON CONFLICT (invalidation_id, job_id) DO UPDATE SET done_at = excluded.done_at
WHERE invalidation_dependents.done_at IS NULL

-- name: dependents_insert
INSERT INTO invalidation_dependents (invalidation_id, job_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING
