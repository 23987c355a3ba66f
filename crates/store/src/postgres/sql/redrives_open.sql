SELECT redrive_id, filter, rate, matched, released, cursor, started_at, finished
FROM redrives WHERE NOT finished ORDER BY started_at
