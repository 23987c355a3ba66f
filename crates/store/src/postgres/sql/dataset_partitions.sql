-- name: partition_get
SELECT version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash, manifest, artifact,
       materialized_at, producer, attempt
FROM dataset_partitions WHERE version_id = $1 AND key = $2

-- name: partitions_commit
-- Data is replaced, the generation stays: only invalidations change it. A new row has that of its version. What was made
-- from an older generation than the job has read since is not written.
INSERT INTO dataset_partitions (version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash,
    manifest, artifact, materialized_at, producer, attempt)
SELECT v.version_id, v.key, v.range_start, v.range_end,
       coalesce((SELECT g.generation FROM dataset_generations g WHERE g.version_id = v.version_id), 0),
       v.location, v.row_count, v.bytes, v.schema_hash, v.manifest, v.artifact, $17, v.producer, v.attempt
FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[],
            $9::text[], $10::uuid[], $11::uuid[], $12::int[], $13::bigint[], $14::uuid[], $15::text[], $16::bigint[])
     AS v (version_id, key, range_start, range_end, location, row_count, bytes, schema_hash, manifest, artifact, producer,
           attempt, from_job, from_version, from_key, from_generation)
WHERE ((SELECT e.generation FROM edge_partitions e
        WHERE e.job_id = v.from_job AND e.version_id = v.from_version AND e.key = v.from_key)
       > v.from_generation) IS NOT TRUE
ORDER BY v.version_id, v.key COLLATE "C"
ON CONFLICT (version_id, key) DO UPDATE
SET range_start = excluded.range_start, range_end = excluded.range_end, location = excluded.location,
    row_count = excluded.row_count, bytes = excluded.bytes, schema_hash = excluded.schema_hash,
    manifest = excluded.manifest, artifact = excluded.artifact, materialized_at = excluded.materialized_at,
    producer = excluded.producer, attempt = excluded.attempt

-- name: partitions_delete
DELETE FROM dataset_partitions WHERE (version_id, key) IN (
    SELECT p.version_id, p.key FROM dataset_partitions p WHERE p.version_id = ANY($1) LIMIT $2)

-- name: partitions_list
SELECT version_id, key, range_start, range_end, generation, location, row_count, bytes, schema_hash, manifest, artifact,
       materialized_at, producer, attempt
FROM dataset_partitions WHERE version_id = $1 AND key > $2 ORDER BY key LIMIT $3

-- name: partitions_unread
SELECT p.key, p.range_start, p.range_end, p.generation
FROM dataset_partitions p
WHERE p.version_id = $2 AND p.key > $3 AND p.location IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM edge_partitions e
                  WHERE e.job_id = $1 AND e.version_id = p.version_id AND e.key = p.key AND e.generation >= p.generation)
ORDER BY p.key LIMIT $4
