-- name: dag_version_get
SELECT version_id, dag, number, yaml, created_at FROM dag_versions WHERE version_id = $1 AND org = $2

-- name: dag_versions_delete
DELETE FROM dag_versions WHERE org = $1 AND version_id = ANY($2)

-- name: dag_versions_insert
INSERT INTO dag_versions (version_id, org, dag, number, yaml, created_at)
SELECT version_id, $1, dag, number, yaml, $6
FROM unnest($2::uuid[], $3::text[], $4::bigint[], $5::text[]) AS v (version_id, dag, number, yaml)
ON CONFLICT DO NOTHING
