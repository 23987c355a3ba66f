SELECT seq, octet_length(result) FROM finished WHERE seq = ANY($1) AND result IS NOT NULL
