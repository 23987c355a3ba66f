SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = $1 AND fair IS NULL ORDER BY priority, at, seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED
