SELECT seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry
FROM blocked WHERE seq = ANY($1) ORDER BY seq FOR UPDATE
