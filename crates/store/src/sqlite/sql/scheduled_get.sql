SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM scheduled WHERE seq = ?
