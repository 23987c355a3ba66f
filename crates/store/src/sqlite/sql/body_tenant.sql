SELECT tenant FROM bodies WHERE seq = ?
