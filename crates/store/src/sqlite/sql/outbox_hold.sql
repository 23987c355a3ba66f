UPDATE outbox SET due_at = ?2 WHERE message = ?1
