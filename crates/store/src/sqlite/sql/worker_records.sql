-- name: worker_record_drain
UPDATE worker_records SET drained_at = CASE WHEN ?2 THEN coalesce(drained_at, ?3) END, drain_reason = ?4
WHERE worker_id = ?1

-- name: worker_record_get
SELECT w.worker_id, w.contracts, w.queues, w.details, w.first_seen_at, w.seen_at, w.drained_at, w.drain_reason,
    (SELECT count(*) FROM running r WHERE r.worker_id = w.worker_id)
FROM worker_records w WHERE w.worker_id = ?

-- name: worker_record_held
SELECT r.id, n.name, b.operator, r.attempt, r.granted_at, r.last_heartbeat_at, r.expires_at
FROM running r JOIN bodies b ON b.seq = r.seq JOIN queue_names n ON n.queue_id = r.queue_id
WHERE r.worker_id = ?1 AND (?2 IS NULL OR b.tenant = ?2) AND (?3 IS NULL OR b.owner = ?3)
ORDER BY r.granted_at, r.seq LIMIT ?4

-- name: worker_record_put
INSERT INTO worker_records (worker_id, contracts, queues, details, first_seen_at, seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?5)
ON CONFLICT (worker_id) DO UPDATE SET contracts = excluded.contracts,
    queues = CASE excluded.queues WHEN '[]' THEN queues ELSE excluded.queues END,
    details = CASE excluded.details WHEN '{}' THEN details ELSE excluded.details END,
    seen_at = max(seen_at, excluded.seen_at)

-- name: worker_records_drained
SELECT worker_id FROM worker_records WHERE drained_at IS NOT NULL

-- name: worker_records_list
SELECT w.worker_id, w.contracts, w.queues, w.details, w.first_seen_at, w.seen_at, w.drained_at, w.drain_reason,
    coalesce(h.held, 0)
FROM worker_records w LEFT JOIN (SELECT worker_id, count(*) AS held FROM running GROUP BY worker_id) h USING (worker_id)
WHERE w.worker_id > ?1 ORDER BY w.worker_id LIMIT ?2

-- name: worker_records_prune
DELETE FROM worker_records WHERE worker_id IN (SELECT worker_id FROM worker_records WHERE seen_at < ? LIMIT ?)

-- name: worker_records_trim
DELETE FROM worker_records WHERE worker_id IN (
    SELECT worker_id FROM worker_records WHERE drained_at IS NULL ORDER BY seen_at DESC, worker_id LIMIT -1 OFFSET ?)
