-- A run goes with its tasks: one that failed is kept as long as a dead letter.
SELECT seq FROM runs
WHERE finished_at IS NOT NULL
  -- Its key, and those of its tasks, live for a while whatever else there is.
  AND (created_at <= $1 OR (run_key IS NULL AND NOT EXISTS (
      SELECT 1 FROM run_tasks t JOIN bodies b ON b.seq = t.task WHERE t.run = runs.seq AND b.idempotency_key IS NOT NULL)))
  AND (finished_at <= $2 OR (failed = 0 AND finished_at <= $3))
ORDER BY finished_at LIMIT $4
FOR UPDATE SKIP LOCKED
