-- name: deployment_get
SELECT seq, document FROM deployments WHERE org = ?1

-- name: deployment_insert
INSERT INTO deployments (org, seq, document, changed_at) VALUES (?1, 1, ?2, ?3)
ON CONFLICT DO NOTHING RETURNING seq

-- name: deployment_newer
SELECT seq, document FROM deployments WHERE org = ?1 AND seq <> ?2

-- name: deployment_seq
SELECT seq FROM deployments WHERE org = ?1

-- name: deployment_update
UPDATE deployments SET seq = seq + 1, document = ?3, changed_at = ?4 WHERE org = ?1 AND seq = ?2 RETURNING seq

-- name: deployments_list
SELECT org, seq FROM deployments ORDER BY org
