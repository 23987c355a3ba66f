-- name: edges_delete
DELETE FROM run_edges WHERE upstream = ANY($1)

-- name: edges_get
SELECT upstream, downstream FROM run_edges WHERE upstream = ANY($1)

-- name: edges_insert
INSERT INTO run_edges (upstream, downstream) SELECT unnest($1::bigint[]), unnest($2::bigint[])

-- name: edges_reached
-- All edges reachable from these tasks, with one index lookup per task.
WITH RECURSIVE reached (seq) AS (
    SELECT unnest($1::bigint[])
    UNION
    SELECT e.downstream FROM reached r
    CROSS JOIN LATERAL (SELECT downstream FROM run_edges WHERE upstream = r.seq OFFSET 0) e
)
SELECT r.seq, e.downstream FROM reached r
CROSS JOIN LATERAL (SELECT downstream FROM run_edges WHERE upstream = r.seq OFFSET 0) e
