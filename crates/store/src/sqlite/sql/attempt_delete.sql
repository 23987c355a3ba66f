DELETE FROM attempts WHERE seq = ? AND attempt = ?
