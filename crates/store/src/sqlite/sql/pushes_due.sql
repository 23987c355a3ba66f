SELECT seq FROM running WHERE queue_id = ?1 AND push_at <= ?2 ORDER BY push_at LIMIT ?3
