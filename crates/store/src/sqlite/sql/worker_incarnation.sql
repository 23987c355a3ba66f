SELECT incarnation FROM workers WHERE worker_id = ?
