SELECT token_id FROM worker_revocations WHERE until > $1 ORDER BY token_id
