WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) AND due_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = p.due_at, failed_at = p.failed_at, tries = o.tries + p.tried, error = p.error
FROM mine JOIN unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::text[])
    AS p (message, due_at, failed_at, tried, error) ON p.message = mine.message
WHERE o.message = mine.message
