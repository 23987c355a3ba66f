SELECT seq, tenant, owner FROM bodies WHERE seq = ANY($1)
