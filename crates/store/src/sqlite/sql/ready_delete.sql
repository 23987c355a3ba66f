DELETE FROM ready WHERE seq = ?
