-- name: webhook_paths_delete
-- All of the organisation but these.
DELETE FROM webhook_paths WHERE org = $1 AND path <> ALL($2)

-- name: webhook_paths_get
SELECT path, org, dag FROM webhook_paths WHERE path = ANY($1)

-- name: webhook_paths_put
-- A path of another organisation stays there, and is missing in the answer.
INSERT INTO webhook_paths AS w (path, org, dag)
SELECT v.path, $1, v.dag FROM unnest($2::text[], $3::text[]) AS v (path, dag) ORDER BY v.path COLLATE "C"
ON CONFLICT (path) DO UPDATE SET dag = excluded.dag WHERE w.org = excluded.org
RETURNING path
