-- name: artifact_get
SELECT digest FROM dataset_artifacts WHERE dataset_id = ?1 AND artifact = ?2

-- name: artifacts_delete
DELETE FROM dataset_artifacts WHERE (dataset_id, artifact) IN (
    SELECT a.dataset_id, a.artifact FROM dataset_artifacts a WHERE a.version_id = ?1 LIMIT ?2)

-- name: artifacts_insert
INSERT INTO dataset_artifacts (dataset_id, artifact, version_id, digest) VALUES (?1, ?2, ?3, ?4)
