-- name: bundles_delete
DELETE FROM udf_bundles WHERE org = ?1 AND bundle_id = ?2

-- name: bundles_get
SELECT bundle_id, org, sha256, manifest, bytes, created_at FROM udf_bundles WHERE org = ?1 AND bundle_id = ?2

-- name: bundles_insert
INSERT INTO udf_bundles (bundle_id, org, sha256, manifest, bytes, created_at)
SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE (SELECT count(*) FROM udf_bundles WHERE org = ?2) < ?7
ON CONFLICT (org, sha256) DO NOTHING

-- name: bundles_known
SELECT 1 FROM udf_bundles WHERE bundle_id = ?1

-- name: bundles_of_content
SELECT bundle_id, org, sha256, manifest, bytes, created_at FROM udf_bundles WHERE org = ?1 AND sha256 = ?2
