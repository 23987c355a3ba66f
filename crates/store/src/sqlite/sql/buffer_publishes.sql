-- name: publishes_buffered
SELECT coalesce(sum(bytes), 0) FROM buffer_publishes WHERE org = ?1 AND due_at IS NOT NULL

-- name: publishes_dead
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE org = ?1 AND dataset_id = ?2 AND dead_at IS NOT NULL AND number > ?3 ORDER BY number LIMIT ?4

-- name: publishes_due
SELECT org, dataset_id FROM buffer_publishes WHERE due_at <= ?1 GROUP BY org, dataset_id ORDER BY min(due_at) LIMIT ?2

-- name: publishes_get
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE publish_id = ?1

-- name: publishes_insert
INSERT INTO buffer_publishes (publish_id, org, dataset_id, digest, body, bytes, created_at, due_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (publish_id) DO NOTHING

-- name: publishes_open
SELECT number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error
FROM buffer_publishes WHERE done_at IS NULL AND length(body) <= 8192 AND number > ?1 ORDER BY number LIMIT ?2

-- name: publishes_prune
-- The body of a batch in the object store is short.
DELETE FROM buffer_publishes WHERE number IN (
    SELECT number FROM buffer_publishes WHERE done_at < ?1 OR dead_at < ?2 LIMIT ?3)
RETURNING CASE WHEN dead_at IS NULL OR length(body) > 8192 THEN '' ELSE body END

-- name: publishes_replay
UPDATE buffer_publishes SET dead_at = NULL, due_at = ?3, receives = 0
WHERE org = ?1 AND dataset_id = ?2 AND dead_at IS NOT NULL AND (?4 IS NULL OR publish_id = ?4)

-- name: publishes_settle
UPDATE buffer_publishes SET due_at = ?2, done_at = ?3, dead_at = ?4, receives = receives - ?5, error = coalesce(?6, error),
    body = CASE WHEN ?3 IS NULL THEN body ELSE '' END
WHERE publish_id = ?1 AND due_at IS NOT NULL

-- name: publishes_take
UPDATE buffer_publishes SET due_at = ?4, receives = receives + 1
WHERE number IN (SELECT number FROM buffer_publishes WHERE dataset_id = ?1 AND due_at <= ?2 ORDER BY number LIMIT ?3)
RETURNING number, publish_id, org, dataset_id, digest, body, created_at, receives, done_at, dead_at, error

-- name: publishes_wake
UPDATE buffer_publishes SET due_at = ?2 WHERE publish_id = ?1 AND due_at > ?2 AND receives = 0
