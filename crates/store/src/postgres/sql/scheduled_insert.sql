INSERT INTO scheduled (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]),
    unnest($5::timestamptz[]), unnest($6::text[]), unnest($7::bigint[]), unnest($8::int[]), unnest($9::bigint[]),
    unnest($10::timestamptz[]), unnest($11::text[])
