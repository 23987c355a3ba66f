SELECT coalesce(sum(running), 0) FROM queue_counts WHERE queue_id = ?
