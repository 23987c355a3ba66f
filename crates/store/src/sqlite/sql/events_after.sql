SELECT batch, at, facts FROM events WHERE batch > ? ORDER BY batch LIMIT ?
