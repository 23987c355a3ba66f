DELETE FROM worker_revocations
WHERE token_id IN (SELECT token_id FROM worker_revocations WHERE until <= $1 LIMIT $2) AND until <= $1
RETURNING 1
