-- name: credential_grants_insert
INSERT INTO credential_grants (at, org, task_id, attempt, backend, access_key_id, purpose, scope, expires_at, request_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: credential_grants_of_task
SELECT id, at, org, task_id, attempt, backend, access_key_id, purpose, scope, expires_at, request_id
FROM credential_grants
WHERE task_id = $1
ORDER BY id DESC LIMIT $2

-- name: credential_grants_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM credential_grants WHERE at < $1 AND id IN (SELECT id FROM credential_grants ORDER BY id LIMIT $2) RETURNING 1
