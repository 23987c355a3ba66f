UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?3)
WHERE key_id = ?1 AND (?2 IS NULL OR tenant = ?2)
RETURNING key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at
