-- name: bodies_delete
DELETE FROM bodies WHERE seq = ?

-- name: bodies_fill
UPDATE bodies SET payload = ?2 WHERE seq = ?1

-- name: bodies_get
SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key, submitted_by
FROM bodies WHERE seq = ?

-- name: bodies_insert
INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key, submitted_by)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: bodies_light
-- Without the payload, which can be large: no decision about an existing task reads it.
SELECT seq, id, queue_id, operator, tenant, workspace, priority, '' AS payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key, submitted_by
FROM bodies WHERE seq = ?

-- name: bodies_of_keys
SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key, submitted_by
FROM bodies WHERE tenant = ? AND workspace = ? AND idempotency_key = ?

-- name: bodies_sizes
-- How much a task takes in memory, about. No large value is read for that.
SELECT b.seq, octet_length(b.payload) + coalesce(octet_length(f.result), 0) + coalesce(octet_length(f.stack), 0)
    + coalesce(octet_length(f.more), 0) + coalesce(octet_length(s.carry), 0) + coalesce(octet_length(r.carry), 0)
    + coalesce(octet_length(g.carry), 0)
FROM bodies b LEFT JOIN finished f ON f.seq = b.seq LEFT JOIN scheduled s ON s.seq = b.seq
LEFT JOIN ready r ON r.seq = b.seq LEFT JOIN running g ON g.seq = b.seq
WHERE b.seq = ?

-- name: bodies_whose
-- Tasks and runs are numbered together, so a number means one or the other.
SELECT tenant, owner FROM bodies WHERE seq = ?1 UNION ALL SELECT tenant, owner FROM runs WHERE seq = ?1
