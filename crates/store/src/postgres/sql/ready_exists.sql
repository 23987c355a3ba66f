SELECT q.name, (SELECT count(*) FROM (SELECT 1 FROM ready r WHERE r.queue_id = q.queue_id LIMIT $2) found)
FROM queues q WHERE q.name = ANY($1) AND NOT q.paused
