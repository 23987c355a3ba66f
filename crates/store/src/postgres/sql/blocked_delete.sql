DELETE FROM blocked WHERE seq = ANY($1)
