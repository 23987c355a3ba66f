-- name: tenant_limits_all
SELECT tenant, limits FROM tenant_limits ORDER BY tenant

-- name: tenant_limits_delete
DELETE FROM tenant_limits WHERE tenant = $1

-- name: tenant_limits_put
INSERT INTO tenant_limits (tenant, limits, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (tenant) DO UPDATE SET limits = excluded.limits, updated_at = excluded.updated_at
