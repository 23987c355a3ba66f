INSERT INTO queue_counts (queue_id, shard, scheduled, ready, running, finished, dead_lettered)
SELECT queue_id, pg_backend_pid(), scheduled, ready, running, finished, dead_lettered
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
     AS v (queue_id, scheduled, ready, running, finished, dead_lettered)
ORDER BY queue_id
ON CONFLICT (queue_id, shard) DO UPDATE
SET scheduled = queue_counts.scheduled + excluded.scheduled, ready = queue_counts.ready + excluded.ready,
    running = queue_counts.running + excluded.running, finished = queue_counts.finished + excluded.finished,
    dead_lettered = queue_counts.dead_lettered + excluded.dead_lettered
