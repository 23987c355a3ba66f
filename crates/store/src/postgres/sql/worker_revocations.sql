-- name: worker_revocation_put
INSERT INTO worker_revocations (token_id, until, created_at, created_by) VALUES ($1, $2, $3, $4)
ON CONFLICT (token_id) DO UPDATE SET until = greatest(worker_revocations.until, excluded.until)

-- name: worker_revocations_live
SELECT token_id FROM worker_revocations WHERE until > $1 ORDER BY token_id

-- name: worker_revocations_prune
DELETE FROM worker_revocations
WHERE token_id IN (SELECT token_id FROM worker_revocations WHERE until <= $1 LIMIT $2) AND until <= $1
RETURNING 1
