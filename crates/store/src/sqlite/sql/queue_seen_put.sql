INSERT OR REPLACE INTO queue_seen (queue_id, seen_at) VALUES (?, ?)
