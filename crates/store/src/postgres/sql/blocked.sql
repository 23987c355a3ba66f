-- name: blocked_count_down
UPDATE blocked b SET waiting_on = v.waiting_on
FROM unnest($1::bigint[], $2::int[]) AS v (seq, waiting_on) WHERE b.seq = v.seq AND b.seq = ANY($1)

-- name: blocked_delete
DELETE FROM blocked WHERE seq = ANY($1)

-- name: blocked_get
SELECT seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry
FROM blocked WHERE seq = ANY($1)

-- name: blocked_insert
INSERT INTO blocked (seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::int[]),
    unnest($6::timestamptz[]), unnest($7::text[]), unnest($8::timestamptz[]), unnest($9::text[])

-- name: blocked_lock
SELECT seq, id, queue_id, priority, waiting_on, at, fair, deadline, carry
FROM blocked WHERE seq = ANY($1) ORDER BY seq FOR UPDATE

-- name: blocked_refair
UPDATE blocked w
SET fair = CASE $2::text WHEN 'tenant' THEN b.tenant
                         WHEN 'workspace' THEN b.workspace
                         WHEN 'tag' THEN coalesce(b.tags::jsonb ->> $3::text, '') END
FROM bodies b WHERE b.seq = w.seq AND w.queue_id = $1
