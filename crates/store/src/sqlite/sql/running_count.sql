SELECT count(*) FROM running WHERE queue_id = ?
