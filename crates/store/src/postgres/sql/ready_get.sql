SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE seq = ANY($1)
