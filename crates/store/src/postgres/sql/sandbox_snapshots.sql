-- name: sandbox_snapshot_delete
DELETE FROM sandbox_snapshots WHERE id = $1 RETURNING 1

-- name: sandbox_snapshot_get
SELECT id, tenant, owner, name, sandbox_id, image, provider, size_bytes, sha256, created_at FROM sandbox_snapshots
WHERE id = $1

-- name: sandbox_snapshot_insert
INSERT INTO sandbox_snapshots (id, tenant, owner, name, sandbox_id, image, provider, size_bytes, sha256, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: sandbox_snapshots_bytes
SELECT coalesce(sum(size_bytes), 0)::bigint FROM sandbox_snapshots WHERE tenant = $1

-- name: sandbox_snapshots_list
SELECT id, tenant, owner, name, sandbox_id, image, provider, size_bytes, sha256, created_at FROM sandbox_snapshots
WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR owner = $2) ORDER BY created_at DESC, id DESC LIMIT $3

-- name: sandbox_snapshots_of_sandbox
SELECT id, tenant, owner, name, sandbox_id, image, provider, size_bytes, sha256, created_at FROM sandbox_snapshots
WHERE ($1::text IS NULL OR tenant = $1) AND ($2::text IS NULL OR owner = $2) AND sandbox_id = $4
ORDER BY created_at DESC, id DESC LIMIT $3
