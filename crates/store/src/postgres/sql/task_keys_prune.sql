DELETE FROM task_keys
WHERE kid IN (SELECT kid FROM task_keys WHERE seen_at <= $1 LIMIT $2)
    -- Judged again on the row as it is when its turn comes: it may have been seen meanwhile.
    AND seen_at <= $1
RETURNING 1
