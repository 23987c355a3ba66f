SELECT t.task FROM run_tasks t
WHERE t.run = ? AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.seq = t.task) ORDER BY t.task
