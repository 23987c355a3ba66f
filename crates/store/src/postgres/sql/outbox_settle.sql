DELETE FROM outbox WHERE message = ANY($1) RETURNING message, queue_id, transport, receipt
