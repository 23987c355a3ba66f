-- name: worker_record_drain
UPDATE worker_records SET drained_at = CASE WHEN $2 THEN coalesce(drained_at, $3) END, drain_reason = $4
WHERE worker_id = $1 RETURNING worker_id

-- name: worker_record_get
SELECT w.worker_id, w.contracts, w.queues, w.details, w.first_seen_at, w.seen_at, w.drained_at, w.drain_reason,
    (SELECT count(*) FROM running r WHERE r.worker_id = w.worker_id COLLATE "default")
FROM worker_records w WHERE w.worker_id = $1

-- name: worker_record_held
SELECT r.id, n.name, b.operator, r.attempt, r.granted_at, r.last_heartbeat_at, r.expires_at
FROM running r JOIN bodies b ON b.seq = r.seq JOIN queue_names n ON n.queue_id = r.queue_id
WHERE r.worker_id = $1 AND ($2::text IS NULL OR b.tenant = $2) AND ($3::text IS NULL OR b.owner = $3)
ORDER BY r.granted_at, r.seq LIMIT $4

-- name: worker_record_put
INSERT INTO worker_records (worker_id, contracts, queues, details, first_seen_at, seen_at)
SELECT s.worker_id, s.contracts, s.queues, s.details, s.seen_at, s.seen_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
    AS s (worker_id, contracts, queues, details, seen_at)
ORDER BY s.worker_id
ON CONFLICT (worker_id) DO UPDATE SET contracts = excluded.contracts,
    queues = CASE excluded.queues WHEN '[]' THEN worker_records.queues ELSE excluded.queues END,
    details = CASE excluded.details WHEN '{}' THEN worker_records.details ELSE excluded.details END,
    seen_at = greatest(worker_records.seen_at, excluded.seen_at)

-- name: worker_records_drained
SELECT worker_id FROM worker_records WHERE drained_at IS NOT NULL

-- name: worker_records_list
SELECT w.worker_id, w.contracts, w.queues, w.details, w.first_seen_at, w.seen_at, w.drained_at, w.drain_reason,
    coalesce(h.held, 0)
FROM worker_records w LEFT JOIN (
    SELECT worker_id COLLATE "C" AS worker_id, count(*) AS held FROM running GROUP BY 1) h USING (worker_id)
WHERE w.worker_id > $1 ORDER BY w.worker_id LIMIT $2

-- name: worker_records_prune
DELETE FROM worker_records WHERE worker_id IN (SELECT worker_id FROM worker_records WHERE seen_at < $1 LIMIT $2)
    AND seen_at < $1

-- name: worker_records_trim
DELETE FROM worker_records WHERE worker_id IN (
    SELECT worker_id FROM worker_records WHERE drained_at IS NULL ORDER BY seen_at DESC, worker_id OFFSET $1)
