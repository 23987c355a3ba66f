-- name: generations_advance
UPDATE dataset_generations SET cursor = ?2 WHERE version_id = ?1 AND (cursor IS NULL OR cursor < ?2)

-- name: generations_delete
-- Only a generation that nothing else is kept about.
DELETE FROM dataset_generations
WHERE version_id = ?1
  AND NOT EXISTS (SELECT 1 FROM dataset_events e WHERE e.version_id = ?1)
  AND NOT EXISTS (SELECT 1 FROM dataset_partitions p WHERE p.version_id = ?1)
  AND NOT EXISTS (SELECT 1 FROM data_invalidations i WHERE i.version_id = ?1)

-- name: generations_get
SELECT version_id, dataset_id, generation, cursor, created_at FROM dataset_generations WHERE version_id = ?1

-- name: generations_insert
INSERT INTO dataset_generations (version_id, dataset_id, org, created_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT DO NOTHING

-- name: generations_unnamed
SELECT version_id FROM dataset_generations
WHERE org = ?1 AND lower(hex(version_id)) NOT IN (SELECT value FROM json_each(?2)) ORDER BY version_id LIMIT ?3
