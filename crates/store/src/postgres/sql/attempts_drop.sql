DELETE FROM attempts a USING unnest($1::bigint[], $2::int[]) AS v (seq, attempt)
WHERE a.seq = v.seq AND a.attempt = v.attempt AND a.seq = ANY($1)
