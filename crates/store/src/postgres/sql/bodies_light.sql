-- All but the payload, which can be large: no decision about a task that exists reads it.
SELECT seq, id, queue_id, operator, tenant, workspace, priority, '' AS payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key
FROM bodies WHERE seq = ANY($1)
