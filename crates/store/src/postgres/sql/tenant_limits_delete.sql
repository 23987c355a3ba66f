DELETE FROM tenant_limits WHERE tenant = $1
