SELECT r.seq, r.message FROM ready r
WHERE r.queue_id = ?1 AND r.seq > ?2 AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.message = r.message)
ORDER BY r.seq LIMIT ?3
