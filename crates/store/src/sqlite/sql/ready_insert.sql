INSERT INTO ready (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
