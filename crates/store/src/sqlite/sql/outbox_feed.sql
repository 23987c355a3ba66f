INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
SELECT r.message, q.transport, r.queue_id, r.seq, r.id, ?3, ?3 FROM ready r JOIN queues q USING (queue_id)
WHERE r.seq = ?1 AND r.message = ?2 AND q.transport IS NOT NULL
ON CONFLICT DO NOTHING
