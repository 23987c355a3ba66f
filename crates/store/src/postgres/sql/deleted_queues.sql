-- name: deleted_queue_put
INSERT INTO deleted_queues (queue_id, name, finished)
SELECT q.queue_id, q.name, sum(c.finished) FROM queues q JOIN queue_counts c USING (queue_id)
WHERE q.queue_id = $1 GROUP BY q.queue_id, q.name HAVING sum(c.finished) > 0

-- name: deleted_queues_add
UPDATE deleted_queues d SET finished = d.finished + v.finished
FROM unnest($1::int[], $2::bigint[]) AS v (queue_id, finished) WHERE d.queue_id = v.queue_id RETURNING d.queue_id

-- name: deleted_queues_prune
DELETE FROM deleted_queues WHERE finished <= 0
