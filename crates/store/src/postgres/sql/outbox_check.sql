SELECT o.message, o.receipt, q.transport IS NOT DISTINCT FROM o.transport AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)
FROM outbox o JOIN queues q USING (queue_id)
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.message
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.message
WHERE o.queue_id = $1 AND o.transport = $2 AND o.message + 0 > $3 ORDER BY o.message + 0 LIMIT $4
