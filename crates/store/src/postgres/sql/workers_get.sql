SELECT worker_id, incarnation FROM workers WHERE worker_id = ANY($1) ORDER BY worker_id FOR UPDATE
