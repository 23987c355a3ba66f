DELETE FROM outbox WHERE message = ? RETURNING message, queue_id, transport, receipt
