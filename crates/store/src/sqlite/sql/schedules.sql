-- name: schedule_delete
DELETE FROM schedules WHERE id = ?1

-- name: schedule_get
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE id = ?1

-- name: schedule_insert
INSERT INTO schedules (id, tenant, name, owner, maker, kind, definition, template, state, paused, due_at, version,
    created_at, updated_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 1, ?12, ?12
WHERE (SELECT count(*) FROM schedules WHERE tenant = ?2) < ?13
ON CONFLICT (tenant, name) DO NOTHING
RETURNING id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at

-- name: schedule_named
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE tenant = ?1 AND name = ?2

-- name: schedule_save
UPDATE schedules SET kind = ?3, definition = ?4, state = ?5, paused = ?6, due_at = ?7, template = coalesce(?8, template),
    updated_at = coalesce(?9, updated_at), version = version + 1
WHERE id = ?1 AND version = ?2
RETURNING id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at

-- name: schedule_template
SELECT template FROM schedules WHERE id = ?1

-- name: schedules_due
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE due_at <= ?1 ORDER BY due_at LIMIT ?2

-- name: schedules_list
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules
WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR owner = ?2) AND (tenant, name) > (?3, ?4)
ORDER BY tenant, name LIMIT ?5

-- name: schedules_next
SELECT min(due_at) FROM schedules WHERE due_at > ?1
