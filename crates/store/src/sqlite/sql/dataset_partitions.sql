-- name: partition_get
SELECT version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash, manifest, artifact,
       materialized_at, producer, attempt
FROM dataset_partitions WHERE version_id = ?1 AND key = ?2

-- name: partitions_commit
-- Data is replaced, the generation stays: only invalidations change it. A new row has that of its version. What was made
-- from an older generation than the job has read since is not written.
INSERT INTO dataset_partitions (version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash,
    manifest, artifact, materialized_at, producer, attempt)
SELECT ?1, ?2, ?3, ?4, coalesce((SELECT g.generation FROM dataset_generations g WHERE g.version_id = ?1), 0),
       ?5, ?6, ?7, ?8, ?9, ?10, ?13, ?11, ?12
WHERE ((SELECT e.generation FROM edge_partitions e
        WHERE e.job_id = ?14 AND e.version_id = ?15 AND e.key = ?16) > ?17) IS NOT TRUE
ON CONFLICT (version_id, key) DO UPDATE
SET range_start = excluded.range_start, range_end = excluded.range_end, location = excluded.location,
    row_count = excluded.row_count, bytes = excluded.bytes, schema_hash = excluded.schema_hash,
    manifest = excluded.manifest, artifact = excluded.artifact, materialized_at = excluded.materialized_at,
    producer = excluded.producer, attempt = excluded.attempt

-- name: partitions_delete
DELETE FROM dataset_partitions WHERE version_id = ?1 AND key IN (
    SELECT p.key FROM dataset_partitions p WHERE p.version_id = ?1 LIMIT ?2)

-- name: partitions_list
SELECT version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash, manifest, artifact,
       materialized_at, producer, attempt
FROM dataset_partitions WHERE version_id = ?1 AND key > ?2 ORDER BY key LIMIT ?3

-- name: partitions_unread
SELECT p.key, p.range_start, p.range_end, p.generation
FROM dataset_partitions p
WHERE p.version_id = ?2 AND p.key > ?3 AND p.location IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM edge_partitions e
                  WHERE e.job_id = ?1 AND e.version_id = p.version_id AND e.key = p.key AND e.generation >= p.generation)
ORDER BY p.key LIMIT ?4
