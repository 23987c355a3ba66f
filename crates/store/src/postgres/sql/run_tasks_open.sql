-- The tasks of a run that have not ended, and whether they wait for others.
SELECT t.run, t.task, EXISTS (SELECT 1 FROM blocked b WHERE b.seq = t.task)
FROM run_tasks t WHERE t.run = ANY($1) AND NOT EXISTS (SELECT 1 FROM finished f WHERE f.seq = t.task)
