DELETE FROM running WHERE seq = ?
