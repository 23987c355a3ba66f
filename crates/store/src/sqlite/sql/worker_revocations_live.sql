SELECT token_id FROM worker_revocations WHERE until > ? ORDER BY token_id
