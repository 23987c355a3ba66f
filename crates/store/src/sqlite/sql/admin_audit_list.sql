SELECT id, at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant
FROM admin_audit
WHERE id < ?1
  AND (?2 IS NULL OR actor = ?2)
  AND (?3 IS NULL OR method = ?3)
  AND (?4 IS NULL OR status = ?4)
  AND (?5 IS NULL OR substr(path, 1, length(?5)) = ?5)
  AND (?6 IS NULL OR tenant = ?6)
ORDER BY id DESC LIMIT ?7
