-- name: run_task_get
SELECT task, depends_on FROM run_tasks WHERE task = ?

-- name: run_task_states
SELECT b.id, b.task_key,
    CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
         WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
         ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END END
FROM bodies b
LEFT JOIN blocked k ON k.seq = b.seq LEFT JOIN scheduled s ON s.seq = b.seq LEFT JOIN ready r ON r.seq = b.seq
LEFT JOIN running u ON u.seq = b.seq LEFT JOIN finished f ON f.seq = b.seq
WHERE b.seq = ? AND b.task_key IS NOT NULL AND f.ended IS DISTINCT FROM 1 ORDER BY b.seq

-- name: run_tasks_delete
DELETE FROM run_tasks WHERE run = ?

-- name: run_tasks_finished
SELECT f.seq, f.queue_id, f.dead_lettered_at IS NOT NULL
FROM run_tasks t JOIN finished f ON f.seq = t.task WHERE t.run = ?1 LIMIT ?2

-- name: run_tasks_get
SELECT task, depends_on FROM run_tasks WHERE run = ? ORDER BY task

-- name: run_tasks_insert
INSERT INTO run_tasks (task, run, depends_on) VALUES (?, ?, ?)

-- name: run_tasks_open
SELECT t.task FROM run_tasks t
WHERE t.run = ? AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.seq = t.task) ORDER BY t.task
