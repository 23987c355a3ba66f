-- name: worker_revocation_put
INSERT INTO worker_revocations (token_id, until, created_at, created_by) VALUES (?, ?, ?, ?)
ON CONFLICT (token_id) DO UPDATE SET until = max(until, excluded.until)

-- name: worker_revocations_live
SELECT token_id FROM worker_revocations WHERE until > ? ORDER BY token_id

-- name: worker_revocations_prune
DELETE FROM worker_revocations
WHERE token_id IN (SELECT token_id FROM worker_revocations WHERE until <= ? LIMIT ?)
