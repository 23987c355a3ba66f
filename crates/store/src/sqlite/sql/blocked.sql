-- name: blocked_count_down
UPDATE blocked SET waiting_on = ?2 WHERE seq = ?1

-- name: blocked_delete
DELETE FROM blocked WHERE seq = ?

-- name: blocked_get
SELECT seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry
FROM blocked WHERE seq = ?

-- name: blocked_insert
INSERT INTO blocked (seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: blocked_refair
UPDATE blocked SET fair = (
    SELECT CASE ?2 WHEN 'tenant' THEN b.tenant
                   WHEN 'workspace' THEN b.workspace
                   WHEN 'tag' THEN coalesce((SELECT tag.value FROM json_each(b.tags) tag WHERE tag.key = ?3), '') END
    FROM bodies b WHERE b.seq = blocked.seq)
WHERE queue_id = ?1
