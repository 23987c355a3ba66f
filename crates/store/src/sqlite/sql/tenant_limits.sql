-- name: tenant_limits_all
SELECT tenant, limits FROM tenant_limits ORDER BY tenant

-- name: tenant_limits_delete
DELETE FROM tenant_limits WHERE tenant = ?

-- name: tenant_limits_put
INSERT OR REPLACE INTO tenant_limits (tenant, limits, updated_at) VALUES (?, ?, ?)
