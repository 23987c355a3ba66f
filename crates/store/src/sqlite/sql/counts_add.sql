-- SQLite holds the checks against the row that it would insert before it sees that there is one already; a queue
-- without a row has nothing that could become less.
INSERT INTO queue_counts (queue_id, scheduled, ready, running, finished, dead_lettered)
VALUES (?1, max(?2, 0), max(?3, 0), max(?4, 0), max(?5, 0), max(?6, 0))
ON CONFLICT (queue_id) DO UPDATE
SET scheduled = scheduled + ?2, ready = ready + ?3, running = running + ?4, finished = finished + ?5,
    dead_lettered = dead_lettered + ?6
