INSERT INTO run_edges (upstream, downstream) SELECT unnest($1::bigint[]), unnest($2::bigint[])
