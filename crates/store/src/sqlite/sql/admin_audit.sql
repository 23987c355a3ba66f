-- name: admin_audit_insert
INSERT INTO admin_audit (at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: admin_audit_list
SELECT id, at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant
FROM admin_audit
WHERE id < ?1
  AND (?2 IS NULL OR actor = ?2)
  AND (?3 IS NULL OR method = ?3)
  AND (?4 IS NULL OR status = ?4)
  AND (?5 IS NULL OR substr(path, 1, length(?5)) = ?5)
  AND (?6 IS NULL OR tenant = ?6)
ORDER BY id DESC LIMIT ?7

-- name: admin_audit_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM admin_audit WHERE at < ?1 AND id IN (SELECT id FROM admin_audit ORDER BY id LIMIT ?2)
