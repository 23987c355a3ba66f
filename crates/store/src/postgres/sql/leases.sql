-- name: lease_lock
SELECT resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at
FROM leases WHERE resource_type = $1 AND resource_id = $2 FOR UPDATE

-- name: lease_release
UPDATE leases SET released_at = store_now($5, $6)
WHERE resource_type = $1 AND resource_id = $2 AND holder_id = $3 AND token = $4 AND released_at IS NULL
RETURNING resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at

-- name: lease_renew
UPDATE leases SET generation = generation + $3, renewed_at = store_now($7, $8),
    expires_at = store_now($7, $8) + $6::bigint * interval '1 millisecond'
WHERE resource_type = $1 AND resource_id = $2 AND holder_id = $4 AND token = $5
    AND released_at IS NULL AND expires_at > store_now($7, $8)
RETURNING resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at

-- name: leases_acquire
-- Rows are locked in the order of their names, so that holders of several leases do not deadlock. A renewal of the types
-- in $3 keeps the generation.
INSERT INTO leases AS l (resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at)
SELECT v.kind, v.id, $4, $5, 1, store_now($7, $8), store_now($7, $8),
    store_now($7, $8) + $6::bigint * interval '1 millisecond'
FROM unnest($1::text[], $2::text[]) AS v (kind, id)
ORDER BY v.kind, v.id
ON CONFLICT (resource_type, resource_id) DO UPDATE
SET generation = l.generation
        + CASE WHEN l.released_at IS NULL AND l.expires_at > store_now($7, $8) AND l.resource_type = ANY($3) THEN 0
               ELSE 1 END,
    acquired_at = CASE WHEN l.released_at IS NULL AND l.expires_at > store_now($7, $8) THEN l.acquired_at
                       ELSE store_now($7, $8) END,
    holder_id = excluded.holder_id, token = excluded.token, renewed_at = store_now($7, $8),
    expires_at = store_now($7, $8) + $6::bigint * interval '1 millisecond', released_at = NULL
WHERE l.released_at IS NOT NULL OR l.expires_at <= store_now($7, $8)
    OR (l.holder_id = excluded.holder_id AND l.token = excluded.token)
RETURNING resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at

-- name: leases_get
SELECT resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at
FROM unnest($1::text[], $2::text[]) AS v (kind, id) JOIN leases ON resource_type = v.kind AND resource_id = v.id

-- name: leases_list
SELECT resource_type, resource_id, holder_id, token, generation, acquired_at, renewed_at, expires_at, released_at
FROM leases WHERE resource_type = $1 ORDER BY resource_id

-- name: leases_prune
DELETE FROM leases WHERE resource_type = 'replica' AND coalesce(released_at, expires_at) < $1 RETURNING resource_id
