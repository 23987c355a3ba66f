UPDATE bodies b SET payload = v.payload
FROM unnest($1::bigint[], $2::text[]) AS v (seq, payload) WHERE b.seq = v.seq AND b.seq = ANY($1)
