INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
SELECT r.message, q.transport, r.queue_id, r.seq, r.id, $1, $1
FROM queues q JOIN ready r USING (queue_id)
WHERE q.transport IS NOT NULL AND NOT EXISTS (SELECT FROM outbox o WHERE o.message = r.message)
LIMIT $2 ON CONFLICT DO NOTHING
RETURNING message
