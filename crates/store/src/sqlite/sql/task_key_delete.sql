DELETE FROM task_keys WHERE kid = ?
