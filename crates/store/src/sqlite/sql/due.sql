SELECT seq, at FROM scheduled WHERE at <= ? ORDER BY at LIMIT ?
