DELETE FROM attempts WHERE seq = ANY($1)
