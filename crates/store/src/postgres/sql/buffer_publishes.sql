-- name: publishes_buffered
SELECT coalesce(sum(bytes), 0)::bigint FROM buffer_publishes WHERE org = $1 AND due_at IS NOT NULL

-- name: publishes_dead
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE org = $1 AND dataset_id = $2 AND dead_at IS NOT NULL AND number > $3 ORDER BY number LIMIT $4

-- name: publishes_due
SELECT org, dataset_id FROM buffer_publishes WHERE due_at <= $1 GROUP BY org, dataset_id ORDER BY min(due_at) LIMIT $2

-- name: publishes_get
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE publish_id = ANY($1)

-- name: publishes_insert
-- A batch that goes through an outside queue is due when its message comes, or after a while.
WITH v AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[],
                         $9::bigint[])
        AS v (publish_id, org, dataset_id, digest, body, bytes, transport, effect, outbox_id)
), recorded AS (
    INSERT INTO buffer_publishes (publish_id, org, dataset_id, digest, body, bytes, created_at, due_at)
    SELECT v.publish_id, v.org, v.dataset_id, v.digest, v.body, v.bytes, $10::timestamptz,
        CASE WHEN v.transport IS NULL THEN $10::timestamptz ELSE $11::timestamptz END
    FROM v ORDER BY v.publish_id
    ON CONFLICT (publish_id) DO NOTHING RETURNING publish_id
)
INSERT INTO outbox (id, kind, key, body, created_at, due_at)
SELECT v.outbox_id, 'publish_buffer', v.transport, v.effect, $10::timestamptz, $10::timestamptz
FROM v JOIN recorded USING (publish_id) WHERE v.transport IS NOT NULL ON CONFLICT (id) DO NOTHING

-- name: publishes_open
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE done_at IS NULL AND length(body) <= 8192 AND number > $1 ORDER BY number LIMIT $2

-- name: publishes_prune
-- The body of a batch in the object store is short.
DELETE FROM buffer_publishes WHERE number IN (
    SELECT number FROM buffer_publishes WHERE done_at < $1 OR dead_at < $2 LIMIT $3)
RETURNING CASE WHEN dead_at IS NULL OR length(body) > 8192 THEN '' ELSE body END

-- name: publishes_replay
UPDATE buffer_publishes SET dead_at = NULL, due_at = $3, receives = 0
WHERE org = $1 AND dataset_id = $2 AND dead_at IS NOT NULL AND ($4::uuid[] IS NULL OR publish_id = ANY($4)) RETURNING number

-- name: publishes_settle
WITH v AS (
    SELECT * FROM unnest($1::uuid[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::int[], $6::text[],
                         $7::text[], $8::text[], $9::bigint[])
        AS v (publish_id, due_at, done_at, dead_at, not_received, error, transport, effect, outbox_id)
), settled AS (
    UPDATE buffer_publishes b SET due_at = v.due_at, done_at = v.done_at, dead_at = v.dead_at,
        receives = b.receives - v.not_received, error = coalesce(v.error, b.error),
        body = CASE WHEN v.done_at IS NULL THEN b.body ELSE '' END
    FROM v WHERE b.publish_id = v.publish_id AND b.due_at IS NOT NULL RETURNING b.publish_id
)
INSERT INTO outbox (id, kind, key, body, created_at, due_at)
SELECT v.outbox_id, 'publish_buffer', v.transport, v.effect, $10::timestamptz, $10::timestamptz
FROM v JOIN settled USING (publish_id) WHERE v.transport IS NOT NULL ON CONFLICT (id) DO NOTHING

-- name: publishes_take
UPDATE buffer_publishes SET due_at = $4, receives = receives + 1
WHERE number IN (SELECT number FROM buffer_publishes WHERE dataset_id = $1 AND due_at <= $2 ORDER BY number LIMIT $3
                 FOR UPDATE SKIP LOCKED)
RETURNING number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error

-- name: publishes_wake
UPDATE buffer_publishes SET due_at = $2 WHERE publish_id = ANY($1) AND due_at > $2 AND receives = 0
