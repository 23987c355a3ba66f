SELECT seq, tenant FROM bodies WHERE seq = ANY($1)
