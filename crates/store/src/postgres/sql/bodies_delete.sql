DELETE FROM bodies WHERE seq = ANY($1)
