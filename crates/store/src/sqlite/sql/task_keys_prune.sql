DELETE FROM task_keys WHERE kid IN (SELECT kid FROM task_keys WHERE seen_at <= ? LIMIT ?)
