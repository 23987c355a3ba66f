-- name: scheduled_delete
DELETE FROM scheduled WHERE seq = ANY($1)

-- name: scheduled_due
SELECT seq FROM scheduled WHERE at <= $1 ORDER BY at LIMIT $2

-- name: scheduled_get
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM scheduled WHERE seq = ANY($1)

-- name: scheduled_insert
INSERT INTO scheduled (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]),
    unnest($5::timestamptz[]), unnest($6::text[]), unnest($7::bigint[]), unnest($8::int[]), unnest($9::bigint[]),
    unnest($10::timestamptz[]), unnest($11::text[])

-- name: scheduled_lock
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM scheduled WHERE seq = ANY($1) ORDER BY seq FOR UPDATE

-- name: scheduled_next
SELECT min(at) FROM scheduled WHERE at > $1

-- name: scheduled_refair
UPDATE scheduled w
SET fair = CASE $2::text WHEN 'tenant' THEN b.tenant
                         WHEN 'workspace' THEN b.workspace
                         WHEN 'tag' THEN coalesce(b.tags::jsonb ->> $3::text, '') END
FROM bodies b WHERE b.seq = w.seq AND w.queue_id = $1
