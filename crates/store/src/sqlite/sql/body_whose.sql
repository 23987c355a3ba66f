SELECT tenant, owner FROM bodies WHERE seq = ?
