SELECT id, at, actor, action, resource, status, detail, tenant, request_id
FROM operation_audit
WHERE id < ?1
  AND (?2 IS NULL OR action = ?2)
  AND (?3 IS NULL OR actor = ?3)
  AND (?4 IS NULL OR tenant = ?4)
ORDER BY id DESC LIMIT ?5
