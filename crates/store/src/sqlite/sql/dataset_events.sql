-- name: data_events_delete
DELETE FROM dataset_events WHERE id IN (SELECT e.id FROM dataset_events e WHERE e.version_id = ?1 LIMIT ?2)

-- name: data_events_insert
-- The generation is that of the position now. A partition without a row has that of its version.
INSERT INTO dataset_events (org, dataset_id, version_id, position, generation, cursor, partition_key, range_start, range_end,
    producer, attempt, recorded_at)
VALUES (?1, ?2, ?3, ?4,
        coalesce((SELECT p.generation FROM dataset_partitions p WHERE p.version_id = ?3 AND p.key = ?6),
                 (SELECT g.generation FROM dataset_generations g WHERE g.version_id = ?3), 0),
        ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT DO NOTHING

-- name: data_events_recorded
SELECT e.id, e.org, e.dataset_id, e.version_id, e.cursor, e.partition_key, e.range_start, e.range_end, e.generation,
       e.producer, e.attempt, e.recorded_at, e.unrouted
FROM dataset_events e
WHERE e.version_id = ?1 AND e.position = ?2
  AND e.generation = coalesce(
      (SELECT p.generation FROM dataset_partitions p WHERE p.version_id = ?1 AND p.key = ?3),
      (SELECT g.generation FROM dataset_generations g WHERE g.version_id = ?1), 0)

-- name: data_events_routed
UPDATE dataset_events SET routed_at = ?4, unrouted = ?3 WHERE id = ?2 AND org = ?1 AND routed_at IS NULL

-- name: data_events_unrouted
SELECT e.id, e.org, e.dataset_id, e.version_id, e.cursor, e.partition_key, e.range_start, e.range_end, e.generation,
       e.producer, e.attempt, e.recorded_at, e.unrouted
FROM dataset_events e
WHERE e.routed_at IS NULL AND e.id > ?2 AND e.org NOT IN (SELECT value FROM json_each(?1)) ORDER BY e.id LIMIT ?3
