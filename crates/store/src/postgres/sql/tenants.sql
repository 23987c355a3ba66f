-- name: tenant_get
SELECT id, name, owner, settings, created_at, updated_at FROM tenants WHERE id = $1

-- name: tenant_insert
INSERT INTO tenants (id, name, owner, settings, created_at, updated_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::timestamptz, $5::timestamptz
WHERE (SELECT count(*) FROM tenants) < $6::bigint
ON CONFLICT DO NOTHING
RETURNING 1

-- name: tenant_member_delete
DELETE FROM tenant_members WHERE tenant = $1 AND user_id = $2 RETURNING 1

-- name: tenant_member_put
INSERT INTO tenant_members (tenant, user_id, role, created_at)
SELECT $1::text, $2::text, $3::text, $4::timestamptz
WHERE (SELECT count(*) FROM tenant_members WHERE tenant = $1 AND user_id <> $2) < $5::bigint
ON CONFLICT (tenant, user_id) DO UPDATE SET role = excluded.role
RETURNING user_id, role, created_at

-- name: tenant_members_list
SELECT user_id, role, created_at FROM tenant_members WHERE tenant = $1 ORDER BY user_id

-- name: tenant_delete
WITH members AS (DELETE FROM tenant_members WHERE tenant = $1)
DELETE FROM tenants WHERE id = $1 RETURNING 1

-- name: tenant_put
INSERT INTO tenants (id, name, owner, settings, created_at, updated_at)
SELECT $1::text, $2::text, $3::text, $4::text, $5::timestamptz, $5::timestamptz
WHERE (SELECT count(*) FROM tenants WHERE id <> $1) < $6::bigint
ON CONFLICT (id) DO UPDATE SET name = excluded.name, owner = excluded.owner, settings = excluded.settings,
    updated_at = excluded.updated_at
RETURNING 1

-- name: tenants_list
SELECT id, name, owner, settings, created_at, updated_at FROM tenants ORDER BY id
