INSERT INTO ready (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::smallint[], $5::timestamptz[], $6::text[], $7::bigint[],
    $8::int[], $9::bigint[], $10::timestamptz[], $11::text[])
