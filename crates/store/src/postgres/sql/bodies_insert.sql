INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at, owner, run_id, task_key)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::text[]), unnest($5::text[]),
    unnest($6::text[]), unnest($7::smallint[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[]),
    unnest($11::text[]), unnest($12::bytea[]), unnest($13::text[]), unnest($14::timestamptz[]),
    unnest($15::timestamptz[]), unnest($16::text[]), unnest($17::uuid[]), unnest($18::text[])
