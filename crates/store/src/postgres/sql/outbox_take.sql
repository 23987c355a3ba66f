WITH taken AS (
    SELECT message FROM outbox WHERE transport = $2 AND due_at <= $1
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $4
FROM taken, queues q WHERE o.message = taken.message AND q.queue_id = o.queue_id
RETURNING o.message, o.id, q.name, o.transport, o.tries
