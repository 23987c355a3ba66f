-- name: event_bounds
SELECT coalesce(min(batch), 0), coalesce(max(batch), 0) FROM events

-- name: event_insert
INSERT INTO events (at, facts) VALUES (?, ?)

-- name: events_after
SELECT batch, at, facts FROM events WHERE batch > ? ORDER BY batch LIMIT ?

-- name: events_prune
-- Batches are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM events WHERE at < ?1 AND batch IN (SELECT batch FROM events ORDER BY batch LIMIT ?2)
