SELECT kid, jwk FROM task_keys WHERE seen_at > ? ORDER BY kid
