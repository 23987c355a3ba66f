INSERT INTO finished (seq, queue_id, ended, finished_at, result, failure, error_code, reason, dead_lettered_at,
    cancel_reason, attempt, fence, attempt_id, token, worker_id, granted_at, last_heartbeat_at, ended_at,
    attempt_state, attempt_reason, receipt, more)
SELECT * FROM unnest($1::bigint[], $2::int[], $3::smallint[], $4::timestamptz[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::timestamptz[], $10::text[], $11::int[], $12::bigint[], $13::uuid[], $14::uuid[], $15::text[],
    $16::timestamptz[], $17::timestamptz[], $18::timestamptz[], $19::smallint[], $20::smallint[], $21::smallint[],
    $22::text[])
