DELETE FROM running WHERE seq = ANY($1)
