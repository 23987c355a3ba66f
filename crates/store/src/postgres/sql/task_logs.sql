-- name: task_log_held
SELECT 1 FROM running WHERE seq = $1 AND id = $2 AND token = $3 AND ($4::text IS NULL OR worker_id = $4)

-- name: task_log_put
INSERT INTO task_logs (seq, attempt, at, bytes, lines)
SELECT r.seq, r.attempt, $5::timestamptz, $6::bigint, $7::text FROM running r
WHERE r.seq = $1 AND r.id = $2 AND r.token = $3 AND ($4::text IS NULL OR r.worker_id = $4)
    AND (SELECT coalesce(sum(l.bytes), 0)::bigint FROM task_logs l WHERE l.seq = r.seq AND l.attempt = r.attempt)
        + $6::bigint <= $8::bigint
    AND (SELECT count(*) FROM task_logs l WHERE l.seq = r.seq AND l.attempt = r.attempt) < $9::bigint
RETURNING piece

-- name: task_logs_delete
DELETE FROM task_logs WHERE seq = ANY($1)

-- name: task_logs_get
SELECT piece, attempt, at, lines FROM task_logs
WHERE seq = $1 AND piece > $2 AND ($3::int IS NULL OR attempt = $3) ORDER BY piece LIMIT $4

-- name: task_logs_prune
DELETE FROM task_logs WHERE piece IN (SELECT piece FROM task_logs WHERE at < $1 ORDER BY at LIMIT $2)

-- name: task_logs_trim
DELETE FROM task_logs WHERE piece <= (SELECT max(piece) FROM task_logs) - $1
