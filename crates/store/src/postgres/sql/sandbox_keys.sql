-- name: sandbox_key_get
SELECT k.fingerprint, k.created_at, s.id, s.tenant, s.owner, s.state, s.reason, s.spec, s.worker_id, s.runtime_id,
    s.request_id, s.pool, s.created_at, s.changed_at, s.expires_at, s.spawn_deadline, s.refused_by
FROM sandbox_keys k JOIN sandboxes s ON s.id = k.sandbox_id WHERE k.tenant = $1 AND k.owner = $2 AND k.key = $3

-- name: sandbox_key_put
INSERT INTO sandbox_keys (tenant, owner, key, fingerprint, sandbox_id, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, owner, key) DO UPDATE
SET fingerprint = excluded.fingerprint, sandbox_id = excluded.sandbox_id, created_at = excluded.created_at

-- name: sandbox_keys_prune
DELETE FROM sandbox_keys WHERE (tenant, owner, key) IN
    (SELECT tenant, owner, key FROM sandbox_keys WHERE created_at < $1 ORDER BY created_at LIMIT $2) RETURNING 1
