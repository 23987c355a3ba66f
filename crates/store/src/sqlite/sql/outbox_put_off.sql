UPDATE outbox SET due_at = ?2, failed_at = ?3, tries = tries + ?4, error = ?5 WHERE message = ?1 AND due_at IS NOT NULL
