SELECT b.seq, b.id, b.queue_id, b.operator, b.tenant, b.workspace, b.priority, b.payload, b.spec, b.tags,
    b.idempotency_key, b.fingerprint, b.traceparent, b.created_at, b.run_at, b.owner, b.run_id, b.task_key
FROM unnest($1::text[], $2::text[], $3::text[]) AS v (tenant, workspace, key)
JOIN bodies b ON b.tenant = v.tenant AND b.workspace = v.workspace AND b.idempotency_key = v.key
