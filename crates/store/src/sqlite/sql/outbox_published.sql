UPDATE outbox SET published_at = ?3, receipt = ?2, due_at = NULL, failed_at = NULL, error = NULL WHERE message = ?1
