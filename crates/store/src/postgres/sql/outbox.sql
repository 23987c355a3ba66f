-- name: outbox_check
SELECT o.id, o.receipt, q.transport IS NOT DISTINCT FROM o.key AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)
FROM outbox o JOIN queues q USING (queue_id)
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.id
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.id
WHERE o.kind = 'enqueue_task' AND o.queue_id = $1 AND o.key = $2 AND o.id + 0 > $3 ORDER BY o.id + 0 LIMIT $4

-- name: outbox_counts
SELECT q.queue_id, CASE WHEN q.dispatch IS NULL THEN q.name ELSE 'dag::' || (q.dispatch::jsonb ->> 'wake') END,
    q.lease_ttl_ms, q.transport IS NOT DISTINCT FROM $1, coalesce(o.rows, 0), coalesce(o.published, 0),
    coalesce(c.ready, 0)::bigint, coalesce(c.running, 0)::bigint, q.dispatch
FROM queues q
LEFT JOIN (SELECT queue_id, count(*) AS rows, count(published_at) AS published
           FROM outbox WHERE kind = 'enqueue_task' AND key = $1 GROUP BY queue_id) o ON o.queue_id = q.queue_id
LEFT JOIN (SELECT queue_id, sum(ready) AS ready, sum(running) AS running
           FROM queue_counts GROUP BY queue_id) c ON c.queue_id = q.queue_id
WHERE q.transport = $1 OR o.rows > 0 ORDER BY q.queue_id

-- name: outbox_done
DELETE FROM outbox WHERE id = ANY($1)

-- name: outbox_feed
WITH page AS (
    SELECT seq, message, queue_id, id, carry FROM ready WHERE queue_id = $2 AND seq > $3 ORDER BY seq LIMIT $4
), fed AS (
    INSERT INTO outbox (id, kind, key, body, queue_id, seq, created_at, due_at)
    SELECT p.message, 'enqueue_task', q.transport, replace(p.id::text, '-', ''), p.queue_id, p.seq, $1, $1
    FROM page p JOIN queues q USING (queue_id)
    WHERE q.transport IS NOT NULL AND NOT EXISTS (SELECT FROM outbox o WHERE o.id = p.message)
        AND (q.dispatch::jsonb ->> 'held' IS DISTINCT FROM 'true' OR p.carry::jsonb #>> '{spec,rebuild}' = 'true')
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT (SELECT count(*) FROM fed), (SELECT max(seq) FROM page), (SELECT count(*) FROM page)

-- name: outbox_insert
-- A batch that is sent again writes the same effects once.
INSERT INTO outbox (id, kind, key, body, queue_id, seq, created_at, due_at)
SELECT e.id, e.kind, e.key, e.body, e.queue_id, e.seq, $8, e.due_at
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::timestamptz[])
    AS e (id, kind, key, body, queue_id, seq, due_at)
ON CONFLICT (id) DO NOTHING

-- name: outbox_lag
SELECT (SELECT count(*) FROM outbox WHERE kind = $1 AND key = $2 AND due_at IS NOT NULL),
    (SELECT count(*) FROM outbox WHERE kind = $1 AND key = $2 AND failed_at IS NOT NULL),
    (SELECT min(created_at) FROM outbox WHERE kind = $1 AND key = $2 AND due_at IS NOT NULL)

-- name: outbox_list
SELECT o.id, o.kind, o.key, q.name, o.body, o.created_at, o.due_at, o.tries, o.error, o.failed_at,
    o.published_at, o.receipt
FROM outbox o JOIN queues q USING (queue_id)
WHERE o.id > $1
    AND ($2::text IS NULL OR q.name = $2)
    AND ($3::text IS NULL OR $3 = CASE WHEN o.published_at IS NOT NULL THEN 'published'
                                       WHEN o.failed_at IS NOT NULL THEN 'failed' ELSE 'waiting' END)
ORDER BY o.id LIMIT $4

-- name: outbox_live
SELECT o.id, o.receipt, r.seq IS NOT NULL
FROM outbox o
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.id
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.id
WHERE o.id = ANY($1) AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)

-- name: outbox_published
WITH mine AS (SELECT id FROM outbox WHERE id = ANY($1) FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET published_at = $3, receipt = p.receipt, due_at = NULL, failed_at = NULL, error = NULL
FROM mine JOIN unnest($1::bigint[], $2::text[]) AS p (id, receipt) ON p.id = mine.id
WHERE o.id = mine.id
RETURNING o.id

-- name: outbox_put_off
WITH mine AS (SELECT id FROM outbox WHERE id = ANY($1) AND due_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = p.due_at, failed_at = p.failed_at, tries = o.tries + p.tried, error = p.error
FROM mine JOIN unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::text[])
    AS p (id, due_at, failed_at, tried, error) ON p.id = mine.id
WHERE o.id = mine.id

-- name: outbox_queues
SELECT queue_id, name, transport, lease_ttl_ms FROM queues
WHERE transport IS NOT NULL AND dispatch IS NULL ORDER BY queue_id

-- name: outbox_receipts
SELECT id, receipt FROM outbox WHERE id = ANY($1) AND receipt IS NOT NULL

-- name: outbox_republish
WITH mine AS (SELECT id FROM outbox WHERE id = ANY($1) AND published_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = $2, published_at = NULL, receipt = NULL FROM mine WHERE o.id = mine.id
RETURNING o.id

-- name: outbox_retry
WITH mine AS (
    SELECT id FROM outbox
    WHERE failed_at IS NOT NULL AND ($2::bigint[] IS NULL OR id = ANY($2))
        AND ($3::text IS NULL OR queue_id = (SELECT queue_id FROM queues WHERE name = $3))
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $1, failed_at = NULL, tries = 0 FROM mine WHERE o.id = mine.id
RETURNING o.id

-- name: outbox_settle
DELETE FROM outbox WHERE id = ANY($1) RETURNING id, queue_id, key, receipt

-- name: outbox_take
WITH taken AS (
    SELECT id FROM outbox WHERE kind = $2 AND key = $3 AND due_at <= $1
    ORDER BY due_at LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $5 FROM taken WHERE o.id = taken.id
RETURNING o.id, o.key, o.body, (
    SELECT CASE WHEN q.dispatch IS NULL THEN q.name ELSE 'dag::' || (q.dispatch::jsonb ->> 'wake') END
    FROM queues q WHERE q.queue_id = o.queue_id), o.tries

-- name: outbox_walk
SELECT o.id, o.receipt, EXISTS (SELECT FROM ready r WHERE r.seq = o.seq AND r.message = o.id)
FROM outbox o
WHERE o.queue_id = $1 AND o.id + 0 > $2 AND o.published_at <= $3 ORDER BY o.id + 0 LIMIT $4
