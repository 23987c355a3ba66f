DELETE FROM run_tasks WHERE task = ANY($1)
