UPDATE outbox SET due_at = ?1, failed_at = NULL, tries = 0
WHERE failed_at IS NOT NULL AND (?2 IS NULL OR message IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue_id = (SELECT queue_id FROM queues WHERE name = ?3))
