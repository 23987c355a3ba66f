-- name: generations_advance
UPDATE dataset_generations g SET cursor = v.cursor
FROM unnest($1::uuid[], $2::bigint[]) AS v (version_id, cursor)
WHERE g.version_id = v.version_id AND (g.cursor IS NULL OR g.cursor < v.cursor)

-- name: generations_delete
-- Only generations that nothing else is kept about.
DELETE FROM dataset_generations g
WHERE version_id = ANY($1)
  AND NOT EXISTS (SELECT 1 FROM dataset_events e WHERE e.version_id = g.version_id)
  AND NOT EXISTS (SELECT 1 FROM dataset_partitions p WHERE p.version_id = g.version_id)
  AND NOT EXISTS (SELECT 1 FROM data_invalidations i WHERE i.version_id = g.version_id)

-- name: generations_get
SELECT version_id, dataset_id, generation, cursor, created_at FROM dataset_generations WHERE version_id = ANY($1)

-- name: generations_insert
INSERT INTO dataset_generations (version_id, dataset_id, org, created_at)
SELECT version_id, dataset_id, $1, $4 FROM unnest($2::uuid[], $3::uuid[]) AS v (version_id, dataset_id)
ON CONFLICT DO NOTHING

-- name: generations_lock
-- Whoever changes what belongs to a generation holds it first, in this order.
SELECT version_id FROM dataset_generations WHERE version_id = ANY($1) ORDER BY version_id FOR NO KEY UPDATE

-- name: generations_unnamed
SELECT version_id FROM dataset_generations WHERE org = $1 AND version_id <> ALL($2) ORDER BY version_id LIMIT $3
