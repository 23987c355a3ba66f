INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
SELECT w.message, w.transport, w.queue_id, w.seq, w.id, $6, $7
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::bigint[], $5::uuid[]) AS w (message, transport, queue_id, seq, id)
