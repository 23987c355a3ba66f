-- name: task_key_delete
DELETE FROM task_keys WHERE kid = $1 RETURNING 1

-- name: task_key_put
INSERT INTO task_keys (kid, jwk, registered_at, seen_at) VALUES ($1, $2, $3, $3)
ON CONFLICT (kid) DO UPDATE SET seen_at = greatest(task_keys.seen_at, excluded.seen_at)

-- name: task_keys_live
SELECT kid, jwk FROM task_keys WHERE seen_at > $1 ORDER BY kid

-- name: task_keys_prune
DELETE FROM task_keys
WHERE kid IN (SELECT kid FROM task_keys WHERE seen_at <= $1 LIMIT $2)
    -- Checked again on the locked row: the key may have been seen in the meantime.
    AND seen_at <= $1
RETURNING 1
