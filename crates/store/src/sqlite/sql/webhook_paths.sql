-- name: webhook_paths_delete
-- All of the organisation but these.
DELETE FROM webhook_paths WHERE org = ?1 AND path NOT IN (SELECT value FROM json_each(?2))

-- name: webhook_paths_get
SELECT path, org, dag FROM webhook_paths WHERE path = ?1

-- name: webhook_paths_put
-- A path of another organisation stays there, and is missing in the answer.
INSERT INTO webhook_paths (path, org, dag) VALUES (?1, ?2, ?3)
ON CONFLICT (path) DO UPDATE SET dag = excluded.dag WHERE webhook_paths.org = excluded.org
RETURNING path
