INSERT INTO blocked (seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
