DELETE FROM runs WHERE seq = ?
