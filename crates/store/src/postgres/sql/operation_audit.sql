-- name: operation_audit_insert
INSERT INTO operation_audit (at, actor, action, sandbox, provider, resource, status, detail, tenant, request_id)
SELECT $1::timestamptz, actor, action, sandbox, (SELECT s.provider FROM sandboxes s WHERE s.id = sandbox),
    resource, status, detail, tenant, request_id
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
    WITH ORDINALITY AS sent (actor, action, sandbox, resource, status, detail, tenant, request_id, place)
ORDER BY place

-- name: operation_audit_list
SELECT id, at, actor, action, resource, status, detail, tenant, request_id, sandbox, provider
FROM operation_audit
WHERE id < $1
  AND ($2::text IS NULL OR action = $2)
  AND ($3::text IS NULL OR actor = $3)
  AND ($4::text IS NULL OR tenant = $4)
ORDER BY id DESC LIMIT $5

-- name: operation_audit_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM operation_audit WHERE at < $1 AND id IN (SELECT id FROM operation_audit ORDER BY id LIMIT $2) RETURNING 1
