SELECT id, at, actor, action, resource, status, detail, tenant, request_id
FROM operation_audit
WHERE id < $1
  AND ($2::text IS NULL OR action = $2)
  AND ($3::text IS NULL OR actor = $3)
  AND ($4::text IS NULL OR tenant = $4)
ORDER BY id DESC LIMIT $5
