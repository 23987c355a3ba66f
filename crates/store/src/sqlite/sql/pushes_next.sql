SELECT min(push_at) FROM running WHERE queue_id = ?1 AND push_at > ?2
