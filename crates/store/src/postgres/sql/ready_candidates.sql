SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = $1 ORDER BY priority, at, seq LIMIT $2 FOR UPDATE SKIP LOCKED
