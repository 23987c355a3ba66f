-- name: edge_partitions_advance
INSERT INTO edge_partitions (job_id, version_id, key, generation) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job_id, version_id, key) DO UPDATE SET generation = excluded.generation
WHERE edge_partitions.generation < excluded.generation

-- name: edge_partitions_delete
DELETE FROM edge_partitions WHERE (job_id, version_id, key) IN (
    SELECT p.job_id, p.version_id, p.key FROM edge_partitions p WHERE p.job_id = ?1 LIMIT ?2)
