SELECT min(fair) FROM ready WHERE queue_id = ? AND fair IS NOT NULL
