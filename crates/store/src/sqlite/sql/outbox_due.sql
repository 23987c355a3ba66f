SELECT o.message, o.id, q.name, o.transport, o.tries FROM outbox o JOIN queues q USING (queue_id)
WHERE o.transport = ?2 AND o.due_at <= ?1 ORDER BY o.due_at LIMIT ?3
