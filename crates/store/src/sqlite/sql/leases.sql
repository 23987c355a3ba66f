-- name: lease_end
UPDATE leases SET expires_at = ?2 WHERE resource = ?1

-- name: lease_get
SELECT resource, holder, token, generation, acquired_at, expires_at FROM leases WHERE resource = ?1

-- name: leases_end
UPDATE leases SET expires_at = 0

-- name: leases_list
SELECT resource, holder, token, generation, acquired_at, expires_at FROM leases ORDER BY resource

-- name: leases_prune
DELETE FROM leases WHERE substr(resource, 1, length(?1)) = ?1 AND expires_at < ?2

-- name: leases_put
INSERT INTO leases (resource, holder, token, generation, acquired_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (resource) DO UPDATE
SET holder = excluded.holder, token = excluded.token, generation = excluded.generation,
    acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
