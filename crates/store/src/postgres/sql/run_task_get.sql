SELECT task, depends_on FROM run_tasks WHERE task = $1
