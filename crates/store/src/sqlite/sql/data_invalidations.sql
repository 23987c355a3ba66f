-- name: invalidation_bump_partition
INSERT INTO dataset_partitions (version_id, key, generation)
SELECT i.version_id, i.partition_key,
       coalesce((SELECT g.generation FROM dataset_generations g WHERE g.version_id = i.version_id), 0) + 1
FROM data_invalidations i
WHERE i.invalidation_id = ?1 AND i.generation IS NULL AND i.partition_key IS NOT NULL
ON CONFLICT (version_id, key) DO UPDATE SET generation = dataset_partitions.generation + 1

-- name: invalidation_bump_partitions
UPDATE dataset_partitions SET generation = generation + 1
WHERE version_id = (SELECT i.version_id FROM data_invalidations i
                    WHERE i.invalidation_id = ?1 AND i.generation IS NULL AND i.row_filter IS NOT NULL)

-- name: invalidation_bump_version
UPDATE dataset_generations SET generation = generation + 1
WHERE version_id = (SELECT i.version_id FROM data_invalidations i
                    WHERE i.invalidation_id = ?1 AND i.generation IS NULL AND i.row_filter IS NOT NULL)

-- name: invalidation_get
SELECT i.invalidation_id, i.org, i.dataset_id, i.version_id, i.partition_key, i.row_filter, i.reason, i.generation,
       i.created_at, i.dependents,
       (SELECT count(*) FROM invalidation_dependents d
        WHERE d.invalidation_id = i.invalidation_id AND d.done_at IS NOT NULL)
FROM data_invalidations i WHERE i.invalidation_id = ?1

-- name: invalidation_insert
-- Without a generation: the statements that follow apply it, and only if it is new.
INSERT INTO data_invalidations (invalidation_id, org, dataset_id, version_id, partition_key, row_filter, reason, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO NOTHING

-- name: invalidation_routed
UPDATE data_invalidations SET dependents = ?3 WHERE invalidation_id = ?1 AND org = ?2 AND dependents IS NULL

-- name: invalidation_settle
UPDATE data_invalidations
SET generation = coalesce((SELECT p.generation FROM dataset_partitions p
                           WHERE p.version_id = data_invalidations.version_id
                             AND p.key = data_invalidations.partition_key),
                          (SELECT g.generation FROM dataset_generations g
                           WHERE g.version_id = data_invalidations.version_id), 0)
WHERE invalidation_id = ?1 AND generation IS NULL

-- name: invalidations_delete
DELETE FROM data_invalidations WHERE invalidation_id IN (
    SELECT i.invalidation_id FROM data_invalidations i WHERE i.version_id = ?1 ORDER BY i.invalidation_id LIMIT ?2)

-- name: invalidations_open
SELECT i.invalidation_id, i.org, i.dataset_id, i.version_id, i.partition_key, i.row_filter, i.reason, i.generation,
       i.created_at, i.dependents,
       (SELECT count(*) FROM invalidation_dependents d
        WHERE d.invalidation_id = i.invalidation_id AND d.done_at IS NOT NULL)
FROM data_invalidations i WHERE i.dependents IS NULL AND i.org NOT IN (SELECT value FROM json_each(?1))
ORDER BY i.created_at, i.invalidation_id LIMIT ?2
