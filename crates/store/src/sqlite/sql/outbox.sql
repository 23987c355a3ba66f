-- name: outbox_check
SELECT o.id, o.receipt, q.transport IS o.key AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)
FROM outbox o JOIN queues q USING (queue_id)
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.id
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.id
WHERE o.kind = 'enqueue_task' AND o.queue_id = ?1 AND o.key = ?2 AND o.id > ?3 ORDER BY o.id LIMIT ?4

-- name: outbox_counts
SELECT q.queue_id, CASE WHEN q.dispatch IS NULL THEN q.name ELSE 'dag::' || (q.dispatch ->> '$.wake') END,
    q.lease_ttl_ms, q.transport IS ?1, coalesce(o.rows, 0), coalesce(o.published, 0),
    coalesce(c.ready, 0), coalesce(c.running, 0), q.dispatch
FROM queues q
LEFT JOIN (SELECT queue_id, count(*) AS rows, count(published_at) AS published
           FROM outbox WHERE kind = 'enqueue_task' AND key = ?1 GROUP BY queue_id) o ON o.queue_id = q.queue_id
LEFT JOIN (SELECT queue_id, sum(ready) AS ready, sum(running) AS running
           FROM queue_counts GROUP BY queue_id) c ON c.queue_id = q.queue_id
WHERE q.transport = ?1 OR o.rows > 0 ORDER BY q.queue_id

-- name: outbox_done
DELETE FROM outbox WHERE id = ?

-- name: outbox_due
SELECT o.id, o.key, o.body, CASE WHEN q.dispatch IS NULL THEN q.name ELSE 'dag::' || (q.dispatch ->> '$.wake') END, o.tries
FROM outbox o LEFT JOIN queues q USING (queue_id)
WHERE o.kind = ?2 AND o.key = ?3 AND o.due_at <= ?1 ORDER BY o.due_at LIMIT ?4

-- name: outbox_feed
INSERT INTO outbox (id, kind, key, body, queue_id, seq, created_at, due_at)
SELECT r.message, 'enqueue_task', q.transport, lower(hex(r.id)), r.queue_id, r.seq, ?3, ?3
FROM ready r JOIN queues q USING (queue_id)
WHERE r.seq = ?1 AND r.message = ?2 AND q.transport IS NOT NULL
    AND (q.dispatch ->> '$.held' IS NOT 1 OR r.carry ->> '$.spec.rebuild')
ON CONFLICT DO NOTHING

-- name: outbox_hold
UPDATE outbox SET due_at = ?2 WHERE id = ?1

-- name: outbox_insert
INSERT INTO outbox (id, kind, key, body, queue_id, seq, created_at, due_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING

-- name: outbox_lag
SELECT (SELECT count(*) FROM outbox WHERE kind = ?1 AND key = ?2 AND due_at IS NOT NULL),
    (SELECT count(*) FROM outbox WHERE kind = ?1 AND key = ?2 AND failed_at IS NOT NULL),
    (SELECT min(created_at) FROM outbox WHERE kind = ?1 AND key = ?2 AND due_at IS NOT NULL)

-- name: outbox_list
SELECT o.id, o.kind, o.key, q.name, o.body, o.created_at, o.due_at, o.tries, o.error, o.failed_at,
    o.published_at, o.receipt
FROM outbox o JOIN queues q USING (queue_id)
WHERE o.id > ?1
    AND (?2 IS NULL OR q.name = ?2)
    AND (?3 IS NULL OR ?3 = CASE WHEN o.published_at IS NOT NULL THEN 'published'
                                       WHEN o.failed_at IS NOT NULL THEN 'failed' ELSE 'waiting' END)
ORDER BY o.id LIMIT ?4

-- name: outbox_live
SELECT o.receipt, r.seq IS NOT NULL
FROM outbox o
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.id
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.id
WHERE o.id = ?1 AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)

-- name: outbox_published
UPDATE outbox SET published_at = ?3, receipt = ?2, due_at = NULL, failed_at = NULL, error = NULL WHERE id = ?1

-- name: outbox_put_off
UPDATE outbox SET due_at = ?2, failed_at = ?3, tries = tries + ?4, error = ?5 WHERE id = ?1 AND due_at IS NOT NULL

-- name: outbox_queues
SELECT queue_id, name, transport, lease_ttl_ms FROM queues
WHERE transport IS NOT NULL AND dispatch IS NULL ORDER BY queue_id

-- name: outbox_receipts
SELECT receipt FROM outbox WHERE id = ? AND receipt IS NOT NULL

-- name: outbox_republish
UPDATE outbox SET due_at = ?2, published_at = NULL, receipt = NULL WHERE id = ?1 AND published_at IS NOT NULL

-- name: outbox_retry
UPDATE outbox SET due_at = ?1, failed_at = NULL, tries = 0
WHERE failed_at IS NOT NULL AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR queue_id = (SELECT queue_id FROM queues WHERE name = ?3))

-- name: outbox_settle
DELETE FROM outbox WHERE id = ? RETURNING id, queue_id, key, receipt

-- name: outbox_unfed
SELECT r.seq, r.message FROM ready r
WHERE r.queue_id = ?1 AND r.seq > ?2 AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.id = r.message)
ORDER BY r.seq LIMIT ?3

-- name: outbox_walk
SELECT o.id, o.receipt, EXISTS (SELECT 1 FROM ready r WHERE r.seq = o.seq AND r.message = o.id)
FROM outbox o
WHERE o.queue_id = ?1 AND o.id > ?2 AND o.published_at <= ?3 ORDER BY o.id LIMIT ?4
