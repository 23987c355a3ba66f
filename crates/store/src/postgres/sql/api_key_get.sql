SELECT key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at
FROM api_keys WHERE key_id = $1 AND ($2::text IS NULL OR tenant = $2)
