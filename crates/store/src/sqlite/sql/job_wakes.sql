-- name: job_queues
SELECT q.queue_id, q.name, q.paused, q.max_running, q.rate, q.burst, q.fairness_key, q.lease_ttl_ms, q.heartbeat_ms,
    q.no_dead_letter, q.bucket_tokens, q.bucket_at, q.fair_cursor, q.tenant, q.transport, q.push, q.strict, q.dispatch,
    c.ready, c.running
FROM queues q JOIN queue_counts c ON c.queue_id = q.queue_id AND c.ready > 0
WHERE q.dispatch IS NOT NULL AND q.push IS NULL AND (?1 IS NULL OR q.dispatch ->> '$.wake' = ?1)
ORDER BY q.queue_id

-- name: job_ready
SELECT r.id, r.message, o.published_at
FROM ready r LEFT JOIN outbox o ON o.id = r.message
WHERE r.queue_id = ?1 AND r.priority <= ?2 AND (NOT ?3 OR r.carry ->> '$.spec.rebuild')
ORDER BY r.priority, r.at, r.seq LIMIT ?4

-- name: job_seen
INSERT OR REPLACE INTO queue_seen (queue_id, seen_at)
SELECT q.queue_id, ?2 FROM queues q
WHERE q.dispatch IS NOT NULL AND q.dispatch ->> '$.wake' = ?1
    AND EXISTS (SELECT 1 FROM ready r WHERE r.queue_id = q.queue_id)

-- name: job_wakes
SELECT o.id, o.seq, o.created_at, o.published_at,
    EXISTS (SELECT 1 FROM ready r WHERE r.seq = o.seq AND r.message = o.id)
FROM outbox o WHERE o.queue_id = ?1 AND o.id > ?2 ORDER BY o.id LIMIT ?3
