-- name: run_task_get
SELECT task, depends_on FROM run_tasks WHERE task = ?

-- name: run_task_states
SELECT id, task_key, state FROM task_state
WHERE seq = ? AND task_key IS NOT NULL AND state <> 'Succeeded' ORDER BY seq

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
