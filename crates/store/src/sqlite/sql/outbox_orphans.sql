DELETE FROM outbox WHERE message IN (
    SELECT o.message
    FROM outbox o JOIN queues q USING (queue_id)
    LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.message
    LEFT JOIN running u ON u.seq = o.seq AND u.message = o.message
    WHERE o.transport IS NOT q.transport OR (r.seq IS NULL AND u.seq IS NULL)
    LIMIT ?1
)
RETURNING message, queue_id, transport, receipt
