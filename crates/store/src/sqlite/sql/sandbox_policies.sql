-- name: sandbox_policies_of_tenant
SELECT id, tenant, resource_type, effect, pattern, priority, created_at FROM sandbox_policies
WHERE tenant = ?1 OR tenant IS NULL ORDER BY priority, created_at, id LIMIT ?2

-- name: sandbox_policy_delete
DELETE FROM sandbox_policies WHERE id = ?1 AND tenant IS ?2

-- name: sandbox_policy_insert
INSERT INTO sandbox_policies (id, tenant, resource_type, effect, pattern, priority, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO NOTHING
RETURNING id, tenant, resource_type, effect, pattern, priority, created_at
