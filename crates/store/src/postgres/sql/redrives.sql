-- name: redrive_get
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished, paused, canceled
FROM redrives WHERE redrive_id = $1 AND ($2::text IS NULL OR filter::jsonb ->> 'tenant' = $2) AND ($3::text IS NULL OR filter::jsonb ->> 'owner' = $3)

-- name: redrive_insert
INSERT INTO redrives (redrive_id, key, filter, rate, matched, started_at, finished)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING

-- name: redrive_known
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished, paused, canceled
FROM redrives WHERE redrive_id = $1 OR key = $2

-- name: redrive_lock
SELECT cursor FROM redrives WHERE redrive_id = $1 FOR UPDATE

-- name: redrive_set
UPDATE redrives SET paused = $4, finished = $5, canceled = $5
WHERE redrive_id = $1 AND NOT finished AND ($2::text IS NULL OR filter::jsonb ->> 'tenant' = $2) AND ($3::text IS NULL OR filter::jsonb ->> 'owner' = $3) RETURNING redrive_id

-- name: redrive_step
UPDATE redrives SET cursor = $2, released = released + $3, finished = (finished OR $4) WHERE redrive_id = $1

-- name: redrives_list
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished, paused, canceled
FROM redrives WHERE (started_at, redrive_id) < ($1, $4) AND ($2::text IS NULL OR filter::jsonb ->> 'tenant' = $2) AND ($3::text IS NULL OR filter::jsonb ->> 'owner' = $3)
ORDER BY started_at DESC, redrive_id DESC LIMIT $5

-- name: redrives_open
SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished, paused, canceled
FROM redrives WHERE NOT finished AND NOT paused ORDER BY started_at

-- name: redrives_prune
DELETE FROM redrives WHERE finished AND started_at < $1
