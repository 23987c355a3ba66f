DELETE FROM bodies WHERE seq = ?
