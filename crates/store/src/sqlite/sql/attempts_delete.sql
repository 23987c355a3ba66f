DELETE FROM attempts WHERE seq = ?
