DELETE FROM finished WHERE seq = ANY($1)
