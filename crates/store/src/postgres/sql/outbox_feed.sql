WITH page AS (
    SELECT seq, message, queue_id, id FROM ready WHERE queue_id = $2 AND seq > $3 ORDER BY seq LIMIT $4
), fed AS (
    INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
    SELECT p.message, q.transport, p.queue_id, p.seq, p.id, $1, $1
    FROM page p JOIN queues q USING (queue_id)
    WHERE q.transport IS NOT NULL AND NOT EXISTS (SELECT FROM outbox o WHERE o.message = p.message)
    ON CONFLICT DO NOTHING
    RETURNING message
)
SELECT (SELECT count(*) FROM fed), (SELECT max(seq) FROM page), (SELECT count(*) FROM page)
