-- Leases that nothing has happened to yet: the columns that are left out are null.
INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, lease_ttl_ms, heartbeat_ms, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::text[]),
    unnest($6::bigint[]), unnest($7::text[]), unnest($8::uuid[]), unnest($9::bigint[]), unnest($10::timestamptz[]),
    unnest($11::int[]), unnest($12::uuid[]), unnest($13::text[]), unnest($14::text[]), unnest($15::timestamptz[]),
    unnest($16::bigint[]), unnest($17::bigint[]), unnest($18::text[])
