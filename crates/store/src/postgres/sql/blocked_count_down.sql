UPDATE blocked b SET waiting_on = v.waiting_on
FROM unnest($1::bigint[], $2::int[]) AS v (seq, waiting_on) WHERE b.seq = v.seq AND b.seq = ANY($1)
