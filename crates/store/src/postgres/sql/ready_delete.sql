DELETE FROM ready WHERE seq = ANY($1)
