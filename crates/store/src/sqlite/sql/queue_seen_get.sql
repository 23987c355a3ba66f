SELECT seen_at FROM queue_seen WHERE queue_id = ?
