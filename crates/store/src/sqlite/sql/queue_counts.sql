-- name: counts_add
-- SQLite applies the CHECK constraints to the row to insert even if it then updates an existing row. A queue without
-- a row has no counts that could decrease, hence the maximum with zero.
INSERT INTO queue_counts (queue_id, scheduled, ready, running, finished, dead_lettered)
VALUES (?1, max(?2, 0), max(?3, 0), max(?4, 0), max(?5, 0), max(?6, 0))
ON CONFLICT (queue_id) DO UPDATE
SET scheduled = scheduled + ?2, ready = ready + ?3, running = running + ?4, finished = finished + ?5,
    dead_lettered = dead_lettered + ?6

-- name: counts_finished
SELECT coalesce(sum(finished), 0) FROM queue_counts

-- name: counts_get
SELECT scheduled, ready, running, finished, dead_lettered FROM queue_counts WHERE queue_id = ?

-- name: counts_running
SELECT coalesce(sum(running), 0) FROM queue_counts WHERE queue_id = ?
