-- name: ready_candidates
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = ? ORDER BY priority, at, seq LIMIT ?

-- name: ready_candidates_of_values
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = ? AND fair = ? ORDER BY priority, at, seq LIMIT ?

-- name: ready_candidates_without_value
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = ? AND fair IS NULL ORDER BY priority, at, seq LIMIT ?

-- name: ready_delete
DELETE FROM ready WHERE seq = ?

-- name: ready_exists
SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue_id = ? LIMIT ?)

-- name: ready_get
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE seq = ?

-- name: ready_insert
INSERT INTO ready (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: ready_oldest
SELECT min(at) FROM ready WHERE queue_id = ? AND priority = ?

-- name: ready_refair
UPDATE ready SET fair = (
    SELECT CASE ?2 WHEN 'tenant' THEN b.tenant
                   WHEN 'workspace' THEN b.workspace
                   WHEN 'tag' THEN coalesce((SELECT tag.value FROM json_each(b.tags) tag WHERE tag.key = ?3), '') END
    FROM bodies b WHERE b.seq = ready.seq)
WHERE queue_id = ?1

-- name: ready_value_after
SELECT min(fair) FROM ready WHERE queue_id = ? AND fair > ?

-- name: ready_value_first
SELECT min(fair) FROM ready WHERE queue_id = ? AND fair IS NOT NULL
