-- name: shared_secret
INSERT INTO shared_secrets (name, secret, created_at) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING secret

-- name: shared_secret_get
SELECT secret FROM shared_secrets WHERE name = $1
