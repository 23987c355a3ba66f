-- All edges that can be reached from these tasks: one step of the index for each.
WITH RECURSIVE reached (seq) AS (
    SELECT unnest($1::bigint[])
    UNION
    SELECT e.downstream FROM reached r
    CROSS JOIN LATERAL (SELECT downstream FROM run_edges WHERE upstream = r.seq OFFSET 0) e
)
SELECT r.seq, e.downstream FROM reached r
CROSS JOIN LATERAL (SELECT downstream FROM run_edges WHERE upstream = r.seq OFFSET 0) e
