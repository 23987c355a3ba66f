INSERT INTO worker_revocations (token_id, until, created_at, created_by) VALUES (?, ?, ?, ?)
ON CONFLICT (token_id) DO UPDATE SET until = max(until, excluded.until)
