WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) AND published_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = $2, published_at = NULL, receipt = NULL FROM mine WHERE o.message = mine.message
RETURNING o.message
