WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET published_at = $3, receipt = p.receipt, due_at = NULL, failed_at = NULL, error = NULL
FROM mine JOIN unnest($1::bigint[], $2::text[]) AS p (message, receipt) ON p.message = mine.message
WHERE o.message = mine.message
RETURNING o.message
