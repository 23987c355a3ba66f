INSERT INTO bodies (seq, id, queue_id, operator, tenant, workspace, priority, payload, spec, tags, idempotency_key,
    fingerprint, traceparent, created_at, run_at)
SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::text[], $5::text[], $6::text[], $7::smallint[],
    $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::text[], $14::timestamptz[],
    $15::timestamptz[])
