SELECT f.seq, f.queue_id, f.dead_lettered_at IS NOT NULL
FROM run_tasks t JOIN finished f ON f.seq = t.task WHERE t.run = ?1 LIMIT ?2
