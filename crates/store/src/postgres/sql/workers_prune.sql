DELETE FROM workers WHERE worker_id IN (SELECT worker_id FROM workers WHERE seen_at < $1 LIMIT $2)
    AND seen_at < $1
