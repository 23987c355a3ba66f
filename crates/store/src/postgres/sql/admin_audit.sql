-- name: admin_audit_insert
INSERT INTO admin_audit (at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant)
SELECT $1::timestamptz, unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::int[]),
    unnest($6::bigint[]),
    unnest($7::text[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[])

-- name: admin_audit_list
SELECT id, at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant
FROM admin_audit
WHERE id < $1
  AND ($2::text IS NULL OR actor = $2)
  AND ($3::text IS NULL OR method = $3)
  AND ($4::int IS NULL OR status = $4)
  AND ($5::text IS NULL OR starts_with(path, $5))
  AND ($6::text IS NULL OR tenant = $6)
ORDER BY id DESC LIMIT $7

-- name: admin_audit_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM admin_audit WHERE at < $1 AND id IN (SELECT id FROM admin_audit ORDER BY id LIMIT $2) RETURNING 1
