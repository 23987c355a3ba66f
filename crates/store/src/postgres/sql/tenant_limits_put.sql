INSERT INTO tenant_limits (tenant, limits, updated_at) VALUES ($1, $2, $3)
ON CONFLICT (tenant) DO UPDATE SET limits = excluded.limits, updated_at = excluded.updated_at
