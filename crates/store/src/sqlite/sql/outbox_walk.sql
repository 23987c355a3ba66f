SELECT o.message, o.receipt, EXISTS (SELECT 1 FROM ready r WHERE r.seq = o.seq AND r.message = o.message)
FROM outbox o
WHERE o.queue_id = ?1 AND o.message > ?2 AND o.published_at <= ?3 ORDER BY o.message LIMIT ?4
