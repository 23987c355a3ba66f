-- Connections come and go, and each leaves its row of counts: the rows of those that are gone become one.
WITH gone AS (
    DELETE FROM queue_counts c
    WHERE c.shard <> 0 AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = c.shard)
    RETURNING queue_id, scheduled, ready, running, finished, dead_lettered
)
INSERT INTO queue_counts (queue_id, shard, scheduled, ready, running, finished, dead_lettered)
SELECT queue_id, 0, sum(scheduled), sum(ready), sum(running), sum(finished), sum(dead_lettered)
FROM gone GROUP BY queue_id ORDER BY queue_id
ON CONFLICT (queue_id, shard) DO UPDATE
SET scheduled = queue_counts.scheduled + excluded.scheduled, ready = queue_counts.ready + excluded.ready,
    running = queue_counts.running + excluded.running, finished = queue_counts.finished + excluded.finished,
    dead_lettered = queue_counts.dead_lettered + excluded.dead_lettered
