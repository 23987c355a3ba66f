-- name: query_audit_get
SELECT at, query_id, org, actor, task, attempt, datasets, columns, row_count, sql_hash, export FROM query_audit WHERE query_id = ?1

-- name: query_audit_insert
INSERT INTO query_audit (at, query_id, org, actor, task, attempt, datasets, columns, row_count, sql_hash, export)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)

-- name: query_audit_prune
-- Rows are numbered roughly in order of time, so only the oldest are examined.
DELETE FROM query_audit WHERE at < ?1 AND id IN (SELECT id FROM query_audit ORDER BY id LIMIT ?2)
