INSERT INTO task_keys (kid, jwk, registered_at, seen_at) VALUES (?1, ?2, ?3, ?3)
ON CONFLICT (kid) DO UPDATE SET seen_at = max(seen_at, excluded.seen_at)
