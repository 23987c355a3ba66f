SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key
FROM bodies WHERE seq = ANY($1)
