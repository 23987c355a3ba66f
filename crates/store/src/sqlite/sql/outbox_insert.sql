INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at) VALUES (?, ?, ?, ?, ?, ?, ?)
