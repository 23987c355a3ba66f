DELETE FROM scheduled WHERE seq = ?
