SELECT count(*) FROM outbox WHERE queue_id = $1 AND published_at IS NOT NULL
