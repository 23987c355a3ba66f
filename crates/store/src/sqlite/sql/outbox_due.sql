SELECT o.message, o.id, q.name, o.transport, o.tries FROM outbox o JOIN queues q USING (queue_id)
WHERE o.due_at <= ?1 AND o.transport IN (SELECT value FROM json_each(?2)) ORDER BY o.due_at LIMIT ?3
