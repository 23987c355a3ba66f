-- name: bundles_delete
DELETE FROM udf_bundles WHERE org = $1 AND bundle_id = $2

-- name: bundles_get
SELECT bundle_id, org, sha256, manifest, bytes, created_at FROM udf_bundles WHERE org = $1 AND bundle_id = ANY($2)

-- name: bundles_insert
INSERT INTO udf_bundles (bundle_id, org, sha256, manifest, bytes, created_at)
SELECT $1::uuid, $2::text, $3::text, $4::text, $5::bigint, $6::timestamptz
WHERE (SELECT count(*) FROM udf_bundles WHERE org = $2::text) < $7::bigint
ON CONFLICT (org, sha256) DO NOTHING

-- name: bundles_known
SELECT bundle_id FROM udf_bundles WHERE bundle_id = ANY($1)

-- name: bundles_of_content
SELECT bundle_id, org, sha256, manifest, bytes, created_at FROM udf_bundles WHERE org = $1 AND sha256 = $2
