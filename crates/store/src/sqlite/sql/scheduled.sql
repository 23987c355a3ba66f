-- name: scheduled_delete
DELETE FROM scheduled WHERE seq = ?

-- name: scheduled_due
SELECT seq, at FROM scheduled WHERE at <= ? ORDER BY at LIMIT ?

-- name: scheduled_get
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM scheduled WHERE seq = ?

-- name: scheduled_insert
INSERT INTO scheduled (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: scheduled_next
SELECT min(at) FROM scheduled WHERE at > ?

-- name: scheduled_refair
UPDATE scheduled SET fair = (
    SELECT CASE ?2 WHEN 'tenant' THEN b.tenant
                   WHEN 'workspace' THEN b.workspace
                   WHEN 'tag' THEN coalesce((SELECT tag.value FROM json_each(b.tags) tag WHERE tag.key = ?3), '') END
    FROM bodies b WHERE b.seq = scheduled.seq)
WHERE queue_id = ?1
