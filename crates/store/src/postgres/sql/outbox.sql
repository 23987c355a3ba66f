-- name: outbox_check
SELECT o.message, o.receipt, q.transport IS NOT DISTINCT FROM o.transport AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)
FROM outbox o JOIN queues q USING (queue_id)
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.message
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.message
WHERE o.queue_id = $1 AND o.transport = $2 AND o.message + 0 > $3 ORDER BY o.message + 0 LIMIT $4

-- name: outbox_counts
SELECT q.queue_id, q.name, q.lease_ttl_ms, q.transport IS NOT DISTINCT FROM $1, coalesce(o.rows, 0),
    coalesce(o.published, 0),
    coalesce(c.ready, 0)::bigint, coalesce(c.running, 0)::bigint
FROM queues q
LEFT JOIN (SELECT queue_id, count(*) AS rows, count(published_at) AS published
           FROM outbox WHERE transport = $1 GROUP BY queue_id) o ON o.queue_id = q.queue_id
LEFT JOIN (SELECT queue_id, sum(ready) AS ready, sum(running) AS running
           FROM queue_counts GROUP BY queue_id) c ON c.queue_id = q.queue_id
WHERE q.transport = $1 OR o.rows > 0 ORDER BY q.queue_id

-- name: outbox_feed
WITH page AS (
    SELECT seq, message, queue_id, id FROM ready WHERE queue_id = $2 AND seq > $3 ORDER BY seq LIMIT $4
), fed AS (
    INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
    SELECT p.message, q.transport, p.queue_id, p.seq, p.id, $1, $1
    FROM page p JOIN queues q USING (queue_id)
    WHERE q.transport IS NOT NULL AND NOT EXISTS (SELECT FROM outbox o WHERE o.message = p.message)
    ON CONFLICT DO NOTHING
    RETURNING message
)
SELECT (SELECT count(*) FROM fed), (SELECT max(seq) FROM page), (SELECT count(*) FROM page)

-- name: outbox_insert
INSERT INTO outbox (message, transport, queue_id, seq, id, created_at, due_at)
SELECT w.message, w.transport, w.queue_id, w.seq, w.id, $6, $7
FROM unnest($1::bigint[], $2::text[], $3::int[], $4::bigint[], $5::uuid[]) AS w (message, transport, queue_id, seq, id)

-- name: outbox_lag
SELECT (SELECT count(*) FROM outbox WHERE transport = $1 AND due_at IS NOT NULL),
    (SELECT count(*) FROM outbox WHERE transport = $1 AND failed_at IS NOT NULL),
    (SELECT min(created_at) FROM outbox WHERE transport = $1 AND due_at IS NOT NULL)

-- name: outbox_list
SELECT o.message, o.kind, o.transport, q.name, o.id, o.created_at, o.due_at, o.tries, o.error, o.failed_at,
    o.published_at, o.receipt
FROM outbox o JOIN queues q USING (queue_id)
WHERE o.message > $1
    AND ($2::text IS NULL OR q.name = $2)
    AND ($3::text IS NULL OR $3 = CASE WHEN o.published_at IS NOT NULL THEN 'published'
                                       WHEN o.failed_at IS NOT NULL THEN 'failed' ELSE 'waiting' END)
ORDER BY o.message LIMIT $4

-- name: outbox_live
SELECT o.message, o.receipt, r.seq IS NOT NULL
FROM outbox o
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.message
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.message
WHERE o.message = ANY($1) AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)

-- name: outbox_published
WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET published_at = $3, receipt = p.receipt, due_at = NULL, failed_at = NULL, error = NULL
FROM mine JOIN unnest($1::bigint[], $2::text[]) AS p (message, receipt) ON p.message = mine.message
WHERE o.message = mine.message
RETURNING o.message

-- name: outbox_put_off
WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) AND due_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = p.due_at, failed_at = p.failed_at, tries = o.tries + p.tried, error = p.error
FROM mine JOIN unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::text[])
    AS p (message, due_at, failed_at, tried, error) ON p.message = mine.message
WHERE o.message = mine.message

-- name: outbox_queues
SELECT queue_id, name, transport, lease_ttl_ms FROM queues WHERE transport IS NOT NULL ORDER BY queue_id

-- name: outbox_receipts
SELECT message, receipt FROM outbox WHERE message = ANY($1) AND receipt IS NOT NULL

-- name: outbox_republish
WITH mine AS (SELECT message FROM outbox WHERE message = ANY($1) AND published_at IS NOT NULL FOR UPDATE SKIP LOCKED)
UPDATE outbox o SET due_at = $2, published_at = NULL, receipt = NULL FROM mine WHERE o.message = mine.message
RETURNING o.message

-- name: outbox_retry
WITH mine AS (
    SELECT message FROM outbox
    WHERE failed_at IS NOT NULL AND ($2::bigint[] IS NULL OR message = ANY($2))
        AND ($3::text IS NULL OR queue_id = (SELECT queue_id FROM queues WHERE name = $3))
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $1, failed_at = NULL, tries = 0 FROM mine WHERE o.message = mine.message
RETURNING o.message

-- name: outbox_settle
DELETE FROM outbox WHERE message = ANY($1) RETURNING message, queue_id, transport, receipt

-- name: outbox_take
WITH taken AS (
    SELECT message FROM outbox WHERE transport = $2 AND due_at <= $1
    ORDER BY due_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $4
FROM taken, queues q WHERE o.message = taken.message AND q.queue_id = o.queue_id
RETURNING o.message, o.id, q.name, o.transport, o.tries

-- name: outbox_walk
SELECT o.message, o.receipt, EXISTS (SELECT FROM ready r WHERE r.seq = o.seq AND r.message = o.message)
FROM outbox o
WHERE o.queue_id = $1 AND o.message + 0 > $2 AND o.published_at <= $3 ORDER BY o.message + 0 LIMIT $4
