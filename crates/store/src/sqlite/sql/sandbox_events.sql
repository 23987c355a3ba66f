-- name: sandbox_event_bounds
SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM sandbox_events

-- name: sandbox_event_insert
INSERT INTO sandbox_events (at, kind, sandbox_id, tenant, owner, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: sandbox_events_after
SELECT id, at, kind, sandbox_id, tenant, owner, data FROM sandbox_events WHERE id > ?1 ORDER BY id LIMIT ?2

-- name: sandbox_events_prune
-- Events are numbered in order of time, so only the oldest are examined.
DELETE FROM sandbox_events WHERE at < ?1 AND id IN (SELECT id FROM sandbox_events ORDER BY id LIMIT ?2)
