INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms,
    heartbeat_ms, cancel_reason, cancel_requested_at, cancel_signaled_at, carry, push_at)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::text[]),
    unnest($6::bigint[]), unnest($7::text[]), unnest($8::uuid[]), unnest($9::bigint[]), unnest($10::timestamptz[]),
    unnest($11::int[]), unnest($12::uuid[]), unnest($13::text[]), unnest($14::text[]), unnest($15::timestamptz[]),
    unnest($16::timestamptz[]), unnest($17::smallint[]), unnest($18::text[]), unnest($19::bigint[]),
    unnest($20::bigint[]), unnest($21::text[]), unnest($22::timestamptz[]), unnest($23::timestamptz[]),
    unnest($24::text[]), unnest($25::timestamptz[])
