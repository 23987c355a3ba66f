INSERT INTO queue_seen (queue_id, seen_at)
SELECT queue_id, $2 FROM queues WHERE name = ANY($1) ORDER BY queue_id
ON CONFLICT (queue_id) DO UPDATE SET seen_at = greatest(queue_seen.seen_at, excluded.seen_at)
