SELECT kid, jwk FROM task_keys WHERE seen_at > $1 ORDER BY kid
