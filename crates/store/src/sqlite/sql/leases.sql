-- name: lease_get
SELECT resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at
FROM leases WHERE resource_type = ?1 AND resource_id = ?2

-- name: lease_release
UPDATE leases SET released_at = ?5
WHERE resource_type = ?1 AND resource_id = ?2 AND holder_id = ?3 AND token = ?4 AND released_at IS NULL

-- name: lease_renew
UPDATE leases SET generation = generation + ?7, renewed_at = ?5, expires_at = ?6
WHERE resource_type = ?1 AND resource_id = ?2 AND holder_id = ?3 AND token = ?4
    AND released_at IS NULL AND expires_at > ?5
RETURNING resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at

-- name: leases_acquire
INSERT INTO leases (resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5, ?6)
ON CONFLICT (resource_type, resource_id) DO UPDATE
SET generation = generation + CASE WHEN released_at IS NULL AND expires_at > ?5 THEN ?7 ELSE 1 END,
    acquired_at = CASE WHEN released_at IS NULL AND expires_at > ?5 THEN acquired_at ELSE ?5 END,
    holder_id = excluded.holder_id, token = excluded.token, renewed_at = excluded.renewed_at,
    expires_at = excluded.expires_at, released_at = NULL
WHERE released_at IS NOT NULL OR expires_at <= ?5
    OR (holder_id = excluded.holder_id AND token = excluded.token)
RETURNING resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at

-- name: leases_end
-- Sandboxes outlive the control plane, and so do their leases.
UPDATE leases SET expires_at = 0 WHERE resource_type IN ('system', 'replica')

-- name: leases_list
SELECT resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at
FROM leases WHERE resource_type = ?1 ORDER BY resource_id

-- name: leases_prune
DELETE FROM leases WHERE resource_type = 'replica' AND coalesce(released_at, expires_at) < ?1
