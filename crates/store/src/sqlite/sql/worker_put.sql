INSERT OR REPLACE INTO workers (worker_id, incarnation, seen_at) VALUES (?, ?, ?)
