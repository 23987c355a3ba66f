-- name: event_bounds
SELECT coalesce(min(batch), 0), coalesce(max(batch), 0) FROM events

-- name: event_horizon
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s

-- name: event_insert
INSERT INTO events (at, facts) VALUES ($1, $2)

-- name: events_after
SELECT batch, at, facts FROM events WHERE batch > $1 ORDER BY batch LIMIT $2

-- name: events_prune
-- Batches are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM events WHERE at < $1 AND batch IN (SELECT batch FROM events ORDER BY batch LIMIT $2) RETURNING batch
