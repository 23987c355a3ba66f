SELECT id, at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant
FROM admin_audit
WHERE id < $1
  AND ($2::text IS NULL OR actor = $2)
  AND ($3::text IS NULL OR method = $3)
  AND ($4::int IS NULL OR status = $4)
  AND ($5::text IS NULL OR starts_with(path, $5))
  AND ($6::text IS NULL OR tenant = $6)
ORDER BY id DESC LIMIT $7
