SELECT f.seq, f.finished_at, f.dead_lettered_at, f.queue_id, b.created_at, b.idempotency_key IS NOT NULL AS has_key,
    b.run_id IS NOT NULL AS in_run
FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.seq > $1 ORDER BY f.seq LIMIT $2
FOR UPDATE OF f SKIP LOCKED
