SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue_id = ? LIMIT ?)
