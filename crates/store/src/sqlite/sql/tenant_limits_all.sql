SELECT tenant, limits FROM tenant_limits ORDER BY tenant
