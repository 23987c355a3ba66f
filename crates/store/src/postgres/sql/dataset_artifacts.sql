-- name: artifact_get
SELECT a.dataset_id, a.artifact, a.digest
FROM unnest($1::uuid[], $2::uuid[]) AS v (dataset_id, artifact)
JOIN dataset_artifacts a ON a.dataset_id = v.dataset_id AND a.artifact = v.artifact

-- name: artifacts_delete
DELETE FROM dataset_artifacts WHERE (dataset_id, artifact) IN (
    SELECT a.dataset_id, a.artifact FROM dataset_artifacts a WHERE a.version_id = ANY($1) LIMIT $2)

-- name: artifacts_insert
INSERT INTO dataset_artifacts (dataset_id, artifact, version_id, digest)
SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::bytea[])
