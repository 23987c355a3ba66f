INSERT INTO operation_audit (at, actor, action, resource, status, detail, tenant, request_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
