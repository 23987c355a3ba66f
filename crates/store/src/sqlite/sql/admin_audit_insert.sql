INSERT INTO admin_audit (at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
