INSERT INTO run_tasks (task, run, depends_on) VALUES (?, ?, ?)
