INSERT INTO worker_revocations (token_id, until, created_at, created_by) VALUES ($1, $2, $3, $4)
ON CONFLICT (token_id) DO UPDATE SET until = greatest(worker_revocations.until, excluded.until)
