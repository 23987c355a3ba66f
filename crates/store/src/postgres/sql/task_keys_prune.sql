DELETE FROM task_keys WHERE kid IN (SELECT kid FROM task_keys WHERE seen_at <= $1 LIMIT $2) RETURNING 1
