DELETE FROM blocked WHERE seq = ?
