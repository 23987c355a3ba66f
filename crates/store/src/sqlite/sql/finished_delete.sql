DELETE FROM finished WHERE seq = ?
