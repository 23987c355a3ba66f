SELECT seq FROM scheduled WHERE at <= $1 ORDER BY at LIMIT $2
