SELECT min(at) FROM ready WHERE queue_id = ? AND priority = ?
