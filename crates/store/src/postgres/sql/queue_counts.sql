-- name: counts_add
INSERT INTO queue_counts (queue_id, shard, blocked, scheduled, ready, running, finished, dead_lettered)
SELECT queue_id, pg_backend_pid(), blocked, scheduled, ready, running, finished, dead_lettered
FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
     AS v (queue_id, blocked, scheduled, ready, running, finished, dead_lettered)
ORDER BY queue_id
ON CONFLICT (queue_id, shard) DO UPDATE
SET blocked = queue_counts.blocked + excluded.blocked, scheduled = queue_counts.scheduled + excluded.scheduled,
    ready = queue_counts.ready + excluded.ready, running = queue_counts.running + excluded.running,
    finished = queue_counts.finished + excluded.finished,
    dead_lettered = queue_counts.dead_lettered + excluded.dead_lettered

-- name: counts_delete
DELETE FROM queue_counts WHERE queue_id = $1

-- name: counts_finished
SELECT ((SELECT coalesce(sum(finished), 0) FROM queue_counts)
        + (SELECT coalesce(sum(finished), 0) FROM deleted_queues))::bigint

-- name: counts_fold
-- Each connection has its own row of counts. Merges the rows of connections that no longer exist.
WITH gone AS (
    DELETE FROM queue_counts c
    WHERE c.shard <> 0 AND NOT EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = c.shard)
    RETURNING queue_id, blocked, scheduled, ready, running, finished, dead_lettered
)
INSERT INTO queue_counts (queue_id, shard, blocked, scheduled, ready, running, finished, dead_lettered)
SELECT queue_id, 0, sum(blocked), sum(scheduled), sum(ready), sum(running), sum(finished), sum(dead_lettered)
FROM gone GROUP BY queue_id ORDER BY queue_id
ON CONFLICT (queue_id, shard) DO UPDATE
SET blocked = queue_counts.blocked + excluded.blocked, scheduled = queue_counts.scheduled + excluded.scheduled,
    ready = queue_counts.ready + excluded.ready, running = queue_counts.running + excluded.running,
    finished = queue_counts.finished + excluded.finished,
    dead_lettered = queue_counts.dead_lettered + excluded.dead_lettered

-- name: counts_get
-- Under the lock of the queue nobody can insert a row, and under the locks of the rows nobody can change one.
SELECT blocked, scheduled, ready, running, finished, dead_lettered FROM queue_counts WHERE queue_id = $1 FOR UPDATE

-- name: counts_running
SELECT queue_id, sum(running)::bigint FROM queue_counts WHERE queue_id = ANY($1) GROUP BY queue_id
