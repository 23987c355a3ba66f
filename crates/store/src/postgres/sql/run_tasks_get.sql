SELECT task, depends_on FROM run_tasks WHERE run = $1 ORDER BY task
