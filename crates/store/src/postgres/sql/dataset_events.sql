-- name: data_events_delete
DELETE FROM dataset_events WHERE id IN (SELECT e.id FROM dataset_events e WHERE e.version_id = ANY($1) LIMIT $2)

-- name: data_events_insert
-- The generation is that of the position now. A partition without a row has that of its version.
INSERT INTO dataset_events (org, dataset_id, version_id, position, generation, cursor, partition_key, range_start, range_end,
    producer, attempt, recorded_at)
SELECT v.org, v.dataset_id, v.version_id, v.position,
       coalesce((SELECT p.generation FROM dataset_partitions p WHERE p.version_id = v.version_id AND p.key = v.key),
                (SELECT g.generation FROM dataset_generations g WHERE g.version_id = v.version_id), 0),
       v.cursor, v.key, v.range_start, v.range_end, v.producer, v.attempt, $11
FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::bigint[], $8::bigint[], $9::uuid[],
            $10::int[])
     AS v (org, dataset_id, version_id, position, cursor, key, range_start, range_end, producer, attempt)
ORDER BY v.version_id, v.position COLLATE "C"
ON CONFLICT DO NOTHING

-- name: data_events_recorded
SELECT v.n, e.id, e.org, e.dataset_id, e.version_id, e.cursor, e.partition_key, e.range_start, e.range_end, e.generation,
       e.producer, e.attempt, e.recorded_at, e.unrouted
FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS v (version_id, position, key, n)
CROSS JOIN LATERAL (
    SELECT * FROM dataset_events d
    WHERE d.version_id = v.version_id AND d.position = v.position
      AND d.generation = coalesce(
          (SELECT p.generation FROM dataset_partitions p WHERE p.version_id = v.version_id AND p.key = v.key),
          (SELECT g.generation FROM dataset_generations g WHERE g.version_id = v.version_id), 0)
) e

-- name: data_events_routed
UPDATE dataset_events e SET routed_at = $4, unrouted = v.unrouted
FROM unnest($2::bigint[], $3::text[]) AS v (id, unrouted)
WHERE e.id = v.id AND e.org = $1 AND e.routed_at IS NULL

-- name: data_events_unrouted
SELECT e.id, e.org, e.dataset_id, e.version_id, e.cursor, e.partition_key, e.range_start, e.range_end, e.generation,
       e.producer, e.attempt, e.recorded_at, e.unrouted
FROM dataset_events e WHERE e.routed_at IS NULL AND e.id > $2 AND e.org <> ALL($1) ORDER BY e.id LIMIT $3
