-- name: dag_version_get
SELECT version_id, dag, number, yaml, created_at FROM dag_versions WHERE version_id = ?1 AND org = ?2

-- name: dag_versions_delete
DELETE FROM dag_versions WHERE org = ?1 AND version_id = ?2

-- name: dag_versions_insert
INSERT INTO dag_versions (version_id, org, dag, number, yaml, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO NOTHING
