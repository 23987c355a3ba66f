-- name: deleted_queue_put
INSERT INTO deleted_queues (queue_id, name, finished)
SELECT q.queue_id, q.name, c.finished FROM queues q JOIN queue_counts c USING (queue_id)
WHERE q.queue_id = ? AND c.finished > 0

-- name: deleted_queues_add
UPDATE deleted_queues SET finished = finished + ?2 WHERE queue_id = ?1

-- name: deleted_queues_prune
DELETE FROM deleted_queues WHERE finished <= 0
