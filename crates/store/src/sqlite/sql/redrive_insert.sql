INSERT INTO redrives (redrive_id, key, filter, rate, matched, started_at, finished)
VALUES (?, ?, ?, ?, ?, ?, ?)
