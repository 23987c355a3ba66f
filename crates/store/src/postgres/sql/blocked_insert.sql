INSERT INTO blocked (seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::int[]),
    unnest($6::timestamptz[]), unnest($7::text[]), unnest($8::timestamptz[]), unnest($9::text[])
