-- name: bodies_delete
DELETE FROM bodies WHERE seq = ANY($1)

-- name: bodies_fill
UPDATE bodies b SET payload = v.payload
FROM unnest($1::bigint[], $2::text[]) AS v (seq, payload) WHERE b.seq = v.seq AND b.seq = ANY($1)

-- name: bodies_get
SELECT seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key, fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key, submitted_by
FROM bodies WHERE seq = ANY($1)

-- name: bodies_insert
INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key, submitted_by)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::text[]), unnest($5::text[]),
    unnest($6::text[]), unnest($7::smallint[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]),
    unnest($11::text[]), unnest($12::bytea[]), unnest($13::text[]), unnest($14::timestamptz[]),
    unnest($15::timestamptz[]), unnest($16::text[]), unnest($17::uuid[]), unnest($18::text[]), unnest($19::text[])

-- name: bodies_light
-- Without the payload, which can be large: no decision about an existing task reads it.
SELECT seq, id, queue_id, operator, tenant, workspace, priority, '' AS payload, spec, tags, idempotency_key,
    fingerprint,
    traceparent, created_at, run_at, owner, run_id, task_key, submitted_by
FROM bodies WHERE seq = ANY($1)

-- name: bodies_of_keys
SELECT b.seq, b.id, b.queue_id, b.operator, b.tenant, b.workspace, b.priority, b.payload, b.spec, b.tags,
    b.idempotency_key, b.fingerprint, b.traceparent, b.created_at, b.run_at, b.owner, b.run_id, b.task_key, b.submitted_by
FROM unnest($1::text[], $2::text[], $3::text[]) AS v (tenant, workspace, key)
JOIN bodies b ON b.tenant = v.tenant AND b.workspace = v.workspace AND b.idempotency_key = v.key

-- name: bodies_sizes
-- How much a task takes in memory, about. No large value is read for that.
SELECT b.seq, octet_length(b.payload)::bigint + coalesce(octet_length(f.result), 0) + coalesce(octet_length(f.stack), 0)
    + coalesce(octet_length(f.more), 0) + coalesce(octet_length(s.carry), 0) + coalesce(octet_length(r.carry), 0)
    + coalesce(octet_length(g.carry), 0)
FROM bodies b LEFT JOIN finished f ON f.seq = b.seq LEFT JOIN scheduled s ON s.seq = b.seq
LEFT JOIN ready r ON r.seq = b.seq LEFT JOIN running g ON g.seq = b.seq
WHERE b.seq = ANY($1)

-- name: bodies_whose
-- Tasks and runs are numbered together, so a number means one or the other.
SELECT seq, tenant, owner FROM bodies WHERE seq = ANY($1)
UNION ALL
SELECT seq, tenant, owner FROM runs WHERE seq = ANY($1)
