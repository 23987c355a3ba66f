INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms,
    heartbeat_ms, cancel_reason, cancel_requested_at, cancel_signaled_at, carry)
SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::smallint[], $5::text[], $6::bigint[], $7::text[],
    $8::uuid[], $9::bigint[], $10::timestamptz[], $11::int[], $12::uuid[], $13::text[], $14::text[],
    $15::timestamptz[], $16::timestamptz[], $17::smallint[], $18::text[], $19::bigint[], $20::bigint[], $21::text[],
    $22::timestamptz[], $23::timestamptz[], $24::text[])
