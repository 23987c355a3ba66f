INSERT INTO finished (seq, queue_id, ended, finished_at, result, failure, error_code, reason, dead_lettered_at,
    cancel_reason, attempt, fence, attempt_id, token, worker_id, granted_at, last_heartbeat_at, ended_at,
    attempt_state, attempt_reason, receipt, more)
SELECT unnest($1::bigint[]), unnest($2::int[]), unnest($3::smallint[]), unnest($4::timestamptz[]),
    unnest($5::text[]), unnest($6::text[]), unnest($7::text[]), unnest($8::text[]), unnest($9::timestamptz[]),
    unnest($10::text[]), unnest($11::int[]), unnest($12::bigint[]), unnest($13::uuid[]), unnest($14::uuid[]),
    unnest($15::text[]), unnest($16::timestamptz[]), unnest($17::timestamptz[]), unnest($18::timestamptz[]),
    unnest($19::smallint[]), unnest($20::smallint[]), unnest($21::smallint[]), unnest($22::text[])
