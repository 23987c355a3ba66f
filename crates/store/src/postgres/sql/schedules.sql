-- name: schedule_delete
DELETE FROM schedules WHERE id = $1 RETURNING 1

-- name: schedule_get
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE id = $1

-- name: schedule_insert
INSERT INTO schedules (id, tenant, name, owner, maker, kind, definition, template, state, paused, due_at, version,
    created_at, updated_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::text, $9::text, $10::boolean,
    $11::timestamptz, 1, $12::timestamptz, $12
WHERE (SELECT count(*) FROM schedules WHERE tenant = $2) < $13::bigint
ON CONFLICT (tenant, name) DO NOTHING
RETURNING id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at

-- name: schedule_named
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE tenant = $1 AND name = $2

-- name: schedule_save
UPDATE schedules SET kind = $3, definition = $4, state = $5, paused = $6, due_at = $7, template = coalesce($8::text, template),
    updated_at = coalesce($9::timestamptz, updated_at), version = version + 1
WHERE id = $1 AND version = $2
RETURNING id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at

-- name: schedule_template
SELECT template FROM schedules WHERE id = $1

-- name: schedules_due
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules WHERE due_at <= $1 ORDER BY due_at LIMIT $2

-- name: schedules_list
SELECT id, tenant, name, owner, maker, kind, definition, state, paused, due_at, version, created_at, updated_at
FROM schedules
WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR owner = $2) AND (tenant, name) > ($3, $4)
ORDER BY tenant, name LIMIT $5

-- name: schedules_next
SELECT min(due_at) FROM schedules WHERE due_at > $1
