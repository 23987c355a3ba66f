DELETE FROM scheduled WHERE seq = ANY($1)
