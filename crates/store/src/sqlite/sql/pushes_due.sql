SELECT seq FROM running WHERE push_at <= ?1 ORDER BY push_at LIMIT ?2
