-- A run goes with its tasks: one that failed is kept as long as a dead letter.
SELECT seq FROM runs
WHERE finished_at IS NOT NULL AND (run_key IS NULL OR created_at <= $1)
  AND (finished_at <= $2 OR (failed = 0 AND (finished_at <= $3 OR $4)))
ORDER BY seq LIMIT $5
FOR UPDATE SKIP LOCKED
