SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = ? AND fair = ? ORDER BY priority, at, seq LIMIT ?
