-- name: counts_add
-- SQLite applies the CHECK constraints to the row to insert even if it then updates an existing row. A queue without
-- a row has no counts that could decrease, hence the maximum with zero.
INSERT INTO queue_counts (queue_id, blocked, scheduled, ready, running, finished, dead_lettered)
VALUES (?1, max(?2, 0), max(?3, 0), max(?4, 0), max(?5, 0), max(?6, 0), max(?7, 0))
ON CONFLICT (queue_id) DO UPDATE
SET blocked = blocked + ?2, scheduled = scheduled + ?3, ready = ready + ?4, running = running + ?5,
    finished = finished + ?6, dead_lettered = dead_lettered + ?7

-- name: counts_delete
DELETE FROM queue_counts WHERE queue_id = ?

-- name: counts_finished
SELECT (SELECT coalesce(sum(finished), 0) FROM queue_counts) + (SELECT coalesce(sum(finished), 0) FROM deleted_queues)

-- name: counts_get
SELECT blocked, scheduled, ready, running, finished, dead_lettered FROM queue_counts WHERE queue_id = ?

-- name: counts_running
SELECT coalesce(sum(running), 0) FROM queue_counts WHERE queue_id = ?
