INSERT INTO api_keys (key_id, hash, name, role, tenant, owner, created_at, created_by, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
