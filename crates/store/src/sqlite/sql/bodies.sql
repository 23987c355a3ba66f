-- name: bodies_delete
DELETE FROM bodies WHERE seq = ?

-- name: bodies_fill
UPDATE bodies SET payload = ?2 WHERE seq = ?1

-- name: bodies_get
SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key
FROM bodies WHERE seq = ?

-- name: bodies_insert
INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: bodies_light
-- Without the payload, which can be large: no decision about an existing task reads it.
SELECT seq, id, queue_id, operator, tenant, workspace, priority, '' AS payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key
FROM bodies WHERE seq = ?

-- name: bodies_of_keys
SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key
FROM bodies WHERE tenant = ? AND workspace = ? AND idempotency_key = ?

-- name: bodies_whose
-- Tasks and runs are numbered together, so a number means one or the other.
SELECT tenant, owner FROM bodies WHERE seq = ?1 UNION ALL SELECT tenant, owner FROM runs WHERE seq = ?1
