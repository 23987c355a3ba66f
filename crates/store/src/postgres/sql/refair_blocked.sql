UPDATE blocked w SET fair = {value} FROM bodies b WHERE b.seq = w.seq AND w.queue_id = $1 AND ($2::text IS NULL OR true)
