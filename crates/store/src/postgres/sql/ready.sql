-- name: ready_candidates
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = $1 AND (priority, at, seq + 0) >= ($3, $4, $5)
ORDER BY priority, at, seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: ready_candidates_of_values
SELECT r.seq, r.id, r.queue_id, r.priority, r.at, r.fair, r.message, r.attempt, r.fence, r.deadline, r.carry
FROM unnest($2::text[]) AS v (value)
CROSS JOIN LATERAL (
    SELECT * FROM ready WHERE queue_id = $1 AND fair = v.value
    ORDER BY priority, at, seq LIMIT $3 FOR UPDATE SKIP LOCKED
) r

-- name: ready_candidates_without_value
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE queue_id = $1 AND fair IS NULL ORDER BY priority, at, seq + 0 LIMIT $2 FOR UPDATE SKIP LOCKED

-- name: ready_delete
DELETE FROM ready WHERE seq = ANY($1)

-- name: ready_exists
SELECT q.name, (SELECT count(*) FROM (SELECT 1 FROM ready r WHERE r.queue_id = q.queue_id LIMIT $2) found)
FROM queues q WHERE q.name = ANY($1) AND NOT q.paused

-- name: ready_get
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE seq = ANY($1)

-- name: ready_insert
INSERT INTO ready (seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]),
    unnest($5::timestamptz[]), unnest($6::text[]), unnest($7::bigint[]), unnest($8::int[]), unnest($9::bigint[]),
    unnest($10::timestamptz[]), unnest($11::text[])

-- name: ready_lock
-- Timers lock a row only if it has a deadline: even a short lock hides the row from claims.
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE seq = ANY($1) AND (deadline IS NOT NULL OR seq <> ALL($2)) ORDER BY seq FOR UPDATE

-- name: ready_refair
UPDATE ready w
SET fair = CASE $2::text WHEN 'tenant' THEN b.tenant
                         WHEN 'workspace' THEN b.workspace
                         WHEN 'tag' THEN coalesce(b.tags::jsonb ->> $3::text, '') END
FROM bodies b WHERE b.seq = w.seq AND w.queue_id = $1

-- name: ready_values
-- Steps from value to value through the index: the cost depends on the number of values, not of rows.
WITH RECURSIVE ring (value, n) AS (
    SELECT (SELECT min(fair) FROM ready WHERE queue_id = $1 AND fair IS NOT NULL AND ($2::text IS NULL OR fair > $2)),
    1::bigint
    UNION ALL
    SELECT (SELECT min(fair) FROM ready WHERE queue_id = $1 AND fair > ring.value), n + 1
    FROM ring WHERE ring.value IS NOT NULL AND n < $3
)
SELECT value FROM ring WHERE value IS NOT NULL
