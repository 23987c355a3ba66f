INSERT INTO api_keys (key_id, hash, name, role, tenant, owner, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING
