SELECT task, depends_on FROM run_tasks WHERE run = ? ORDER BY task
