-- name: sandbox_event_bounds
SELECT coalesce(min(id), 0), coalesce(max(id), 0) FROM sandbox_events

-- name: sandbox_event_insert
INSERT INTO sandbox_events (at, kind, sandbox_id, tenant, owner, data)
SELECT $1::timestamptz, v.* FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) AS v

-- name: sandbox_event_order
-- Numbers are drawn in the order in which events become visible: a reader that has seen one misses no earlier one.
-- Nothing else is locked after this.
SELECT pg_advisory_xact_lock(7423000002)

-- name: sandbox_events_after
SELECT id, at, kind, sandbox_id, tenant, owner, data FROM sandbox_events WHERE id > $1 ORDER BY id LIMIT $2

-- name: sandbox_events_prune
-- Events are numbered in order of time, so only the oldest are examined.
DELETE FROM sandbox_events WHERE at < $1 AND id IN (SELECT id FROM sandbox_events ORDER BY id LIMIT $2) RETURNING 1
