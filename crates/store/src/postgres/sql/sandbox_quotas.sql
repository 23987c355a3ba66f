-- name: sandbox_quota_delete
DELETE FROM sandbox_quotas WHERE tenant = $1 AND owner = $2 RETURNING 1

-- name: sandbox_quota_get
SELECT tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at FROM sandbox_quotas
WHERE tenant = $1 AND owner = $2

-- name: sandbox_quota_of
-- The quota of the owner of a sandbox.
SELECT tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at FROM sandbox_quotas
WHERE (tenant, owner) = (SELECT tenant, owner FROM sandboxes WHERE id = $1)

-- name: sandbox_quota_of_tenant
SELECT tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at FROM sandbox_quotas
WHERE tenant = (SELECT tenant FROM sandboxes WHERE id = $1) AND owner = $2

-- name: sandbox_quota_put
INSERT INTO sandbox_quotas (tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $6)
ON CONFLICT (tenant, owner) DO UPDATE
SET max_sandboxes = excluded.max_sandboxes, max_ttl_ms = excluded.max_ttl_ms,
    max_exec_timeout_ms = excluded.max_exec_timeout_ms, updated_at = excluded.updated_at
RETURNING tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at

-- name: sandbox_quotas_list
SELECT tenant, owner, max_sandboxes, max_ttl_ms, max_exec_timeout_ms, created_at, updated_at FROM sandbox_quotas
WHERE $1::text IS NULL OR tenant = $1 ORDER BY tenant, owner LIMIT $2
