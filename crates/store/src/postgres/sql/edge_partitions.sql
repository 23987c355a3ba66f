-- name: edge_partitions_advance
INSERT INTO edge_partitions AS p (job_id, version_id, key, generation)
SELECT job_id, version_id, key, generation
FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[]) AS v (job_id, version_id, key, generation)
ORDER BY job_id, version_id, key COLLATE "C"
ON CONFLICT (job_id, version_id, key) DO UPDATE SET generation = excluded.generation
WHERE p.generation < excluded.generation

-- name: edge_partitions_delete
DELETE FROM edge_partitions WHERE (job_id, version_id, key) IN (
    SELECT p.job_id, p.version_id, p.key FROM edge_partitions p WHERE p.job_id = ANY($1) LIMIT $2)
