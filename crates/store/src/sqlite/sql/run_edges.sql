-- name: edges_delete
DELETE FROM run_edges WHERE upstream = ?

-- name: edges_get
SELECT downstream FROM run_edges WHERE upstream = ?

-- name: edges_insert
INSERT INTO run_edges (upstream, downstream) VALUES (?, ?)
