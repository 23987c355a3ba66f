-- name: api_key_get
SELECT key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at
FROM api_keys WHERE key_id = $1 AND ($2::text IS NULL OR tenant = $2)

-- name: api_key_insert
INSERT INTO api_keys (key_id, hash, name, role, tenant, owner, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING

-- name: api_key_of_hash
SELECT key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at
FROM api_keys WHERE hash = $1

-- name: api_key_revoke
UPDATE api_keys SET revoked_at = coalesce(revoked_at, $3)
WHERE key_id = $1 AND ($2::text IS NULL OR tenant = $2)
RETURNING key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at

-- name: api_keys_list
SELECT key_id, name, role, tenant, owner, created_at, created_by, expires_at, revoked_at
FROM api_keys WHERE key_id > $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY key_id LIMIT $3
