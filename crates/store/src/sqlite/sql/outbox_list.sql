SELECT o.message, o.kind, o.transport, q.name, o.id, o.created_at, o.due_at, o.tries, o.error, o.failed_at,
    o.published_at, o.receipt
FROM outbox o JOIN queues q USING (queue_id)
WHERE o.message > ?1
    AND (?2 IS NULL OR q.name = ?2)
    AND (?3 IS NULL OR ?3 = CASE WHEN o.published_at IS NOT NULL THEN 'published'
                                       WHEN o.failed_at IS NOT NULL THEN 'failed' ELSE 'waiting' END)
ORDER BY o.message LIMIT ?4
