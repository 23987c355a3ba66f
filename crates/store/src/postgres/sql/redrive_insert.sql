INSERT INTO redrives (redrive_id, key, filter, rate, matched, started_at, finished)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
