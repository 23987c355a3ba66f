UPDATE outbox SET due_at = ?2, published_at = NULL, receipt = NULL WHERE message = ?1 AND published_at IS NOT NULL
