-- name: tenant_get
SELECT id, name, owner, settings, created_at, updated_at FROM tenants WHERE id = ?1

-- name: tenant_insert
INSERT INTO tenants (id, name, owner, settings, created_at, updated_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?5 WHERE (SELECT count(*) FROM tenants) < ?6
ON CONFLICT DO NOTHING

-- name: tenant_member_delete
DELETE FROM tenant_members WHERE tenant = ?1 AND user_id = ?2

-- name: tenant_member_put
INSERT INTO tenant_members (tenant, user_id, role, created_at)
SELECT ?1, ?2, ?3, ?4
WHERE (SELECT count(*) FROM tenant_members WHERE tenant = ?1 AND user_id <> ?2) < ?5
ON CONFLICT (tenant, user_id) DO UPDATE SET role = excluded.role
RETURNING user_id, role, created_at

-- name: tenant_members_delete
DELETE FROM tenant_members WHERE tenant = ?1

-- name: tenant_members_list
SELECT user_id, role, created_at FROM tenant_members WHERE tenant = ?1 ORDER BY user_id

-- name: tenant_delete
DELETE FROM tenants WHERE id = ?1

-- name: tenant_put
INSERT INTO tenants (id, name, owner, settings, created_at, updated_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?5
WHERE (SELECT count(*) FROM tenants WHERE id <> ?1) < ?6
ON CONFLICT (id) DO UPDATE SET name = excluded.name, owner = excluded.owner, settings = excluded.settings,
    updated_at = excluded.updated_at

-- name: tenants_list
SELECT id, name, owner, settings, created_at, updated_at FROM tenants ORDER BY id
