-- name: redrive_insert
INSERT INTO redrives (redrive_id, key, filter, rate, matched, started_at, finished)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING

-- name: redrive_known
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished
FROM redrives WHERE redrive_id = $1 OR key = $2

-- name: redrive_lock
SELECT cursor FROM redrives WHERE redrive_id = $1 FOR UPDATE

-- name: redrive_step
UPDATE redrives SET cursor = $2, released = released + $3, finished = $4 WHERE redrive_id = $1

-- name: redrives_open
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished
FROM redrives WHERE NOT finished ORDER BY started_at

-- name: redrives_prune
DELETE FROM redrives WHERE finished AND started_at < $1
