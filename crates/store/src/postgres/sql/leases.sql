-- name: lease_end
UPDATE leases SET expires_at = $2 WHERE resource = $1

-- name: leases_list
SELECT resource, holder, token, generation, acquired_at, expires_at FROM leases ORDER BY resource

-- name: leases_lock
SELECT resource, holder, token, generation, acquired_at, expires_at
FROM leases WHERE resource = ANY ($1) ORDER BY resource FOR UPDATE

-- name: leases_prune
DELETE FROM leases WHERE starts_with(resource, $1) AND expires_at < $2 RETURNING resource

-- name: leases_put
-- Rows that were found are locked. A row that another inserted meanwhile stays as it is.
INSERT INTO leases (resource, holder, token, generation, acquired_at, expires_at)
SELECT resource, $2, $3, generation, acquired_at, expires_at
FROM unnest($1::text[], $4::bigint[], $5::timestamptz[], $6::timestamptz[])
    AS new (resource, generation, acquired_at, expires_at)
ORDER BY resource
ON CONFLICT (resource) DO UPDATE
SET holder = excluded.holder, token = excluded.token, generation = excluded.generation,
    acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
WHERE leases.generation < excluded.generation
    OR (leases.generation = excluded.generation AND leases.token = excluded.token)
RETURNING resource
