SELECT batch, at, facts FROM events WHERE batch > $1 ORDER BY batch LIMIT $2
