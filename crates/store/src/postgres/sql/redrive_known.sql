SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished
FROM redrives WHERE redrive_id = $1 OR key = $2
