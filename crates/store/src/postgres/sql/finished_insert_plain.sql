-- The usual end: the columns that are left out are null.
INSERT INTO finished (seq, queue_id, ended, finished_at, result, attempt, fence, attempt_id, token, worker_id,
    granted_at, attempt_state, attempt_reason, receipt)
SELECT unnest($1::bigint[]), unnest($2::int[]), unnest($3::smallint[]), unnest($4::timestamptz[]),
    unnest($5::text[]), unnest($6::int[]), unnest($7::bigint[]), unnest($8::uuid[]), unnest($9::uuid[]),
    unnest($10::text[]), unnest($11::timestamptz[]), unnest($12::smallint[]), unnest($13::smallint[]),
    unnest($14::smallint[])
