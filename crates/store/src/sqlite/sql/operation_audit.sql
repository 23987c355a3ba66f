-- name: operation_audit_insert
INSERT INTO operation_audit (at, actor, action, sandbox, provider, resource, status, detail, tenant, request_id)
VALUES (?1, ?2, ?3, ?4, (SELECT provider FROM sandboxes WHERE id = ?4), ?5, ?6, ?7, ?8, ?9)

-- name: operation_audit_list
SELECT id, at, actor, action, resource, status, detail, tenant, request_id, sandbox, provider
FROM operation_audit
WHERE id < ?1
  AND (?2 IS NULL OR action = ?2)
  AND (?3 IS NULL OR actor = ?3)
  AND (?4 IS NULL OR tenant = ?4)
ORDER BY id DESC LIMIT ?5

-- name: operation_audit_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM operation_audit WHERE at < ?1 AND id IN (SELECT id FROM operation_audit ORDER BY id LIMIT ?2)
