SELECT (SELECT count(*) FROM outbox WHERE transport = ?1 AND due_at IS NOT NULL),
    (SELECT count(*) FROM outbox WHERE transport = ?1 AND failed_at IS NOT NULL),
    (SELECT min(created_at) FROM outbox WHERE transport = ?1 AND due_at IS NOT NULL)
