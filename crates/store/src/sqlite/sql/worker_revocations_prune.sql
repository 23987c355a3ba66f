DELETE FROM worker_revocations
WHERE token_id IN (SELECT token_id FROM worker_revocations WHERE until <= ? LIMIT ?)
