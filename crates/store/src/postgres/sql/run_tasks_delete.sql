DELETE FROM run_tasks WHERE run = $1
