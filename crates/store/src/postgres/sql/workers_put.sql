INSERT INTO workers (worker_id, incarnation, seen_at) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET incarnation = excluded.incarnation, seen_at = excluded.seen_at
WHERE workers.incarnation <= excluded.incarnation
