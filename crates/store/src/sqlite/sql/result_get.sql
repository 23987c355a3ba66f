SELECT result FROM finished WHERE seq = ?
