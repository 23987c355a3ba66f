-- name: running_count_of_attempts
SELECT count(*) FROM running WHERE attempt_id = ANY($1)

-- name: running_count_of_claim
SELECT count(*) FROM running WHERE worker_id = $1 AND claim_id = $2

-- name: running_count_of_worker
SELECT count(*) FROM (SELECT 1 FROM running WHERE worker_id = $1 AND incarnation < $2 LIMIT $3) AS held

-- name: running_delete
DELETE FROM running WHERE seq = ANY($1)

-- name: running_get
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE seq = ANY($1)

-- name: running_insert
INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms,
    heartbeat_ms, cancel_reason, cancel_requested_at, cancel_signaled_at, carry, push_at, deliveries, started_at)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::text[]),
    unnest($6::bigint[]), unnest($7::text[]), unnest($8::uuid[]), unnest($9::bigint[]), unnest($10::timestamptz[]),
    unnest($11::int[]), unnest($12::uuid[]), unnest($13::text[]), unnest($14::text[]), unnest($15::timestamptz[]),
    unnest($16::timestamptz[]), unnest($17::smallint[]), unnest($18::text[]), unnest($19::bigint[]),
    unnest($20::bigint[]), unnest($21::text[]), unnest($22::timestamptz[]), unnest($23::timestamptz[]),
    unnest($24::text[]), unnest($25::timestamptz[]), unnest($26::int[]), unnest($27::timestamptz[])

-- name: running_insert_fresh
-- For leases that were just granted: the omitted columns are null.
INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, lease_ttl_ms, heartbeat_ms, carry)
SELECT unnest($1::bigint[]), unnest($2::uuid[]), unnest($3::int[]), unnest($4::smallint[]), unnest($5::text[]),
    unnest($6::bigint[]), unnest($7::text[]), unnest($8::uuid[]), unnest($9::bigint[]), unnest($10::timestamptz[]),
    unnest($11::int[]), unnest($12::uuid[]), unnest($13::text[]), unnest($14::text[]), unnest($15::timestamptz[]),
    unnest($16::bigint[]), unnest($17::bigint[]), unnest($18::text[])

-- name: running_lock
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE seq = ANY($1) ORDER BY seq FOR UPDATE

-- name: running_longest_lease
SELECT coalesce(max(lease_ttl_ms), 0) FROM running

-- name: running_of_attempts
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE attempt_id = ANY($1) ORDER BY seq FOR UPDATE

-- name: running_of_claim
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE worker_id = $1 AND claim_id = $2 ORDER BY seq FOR UPDATE

-- name: running_of_worker
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE worker_id = $1 AND incarnation < $2 ORDER BY seq LIMIT $3 FOR UPDATE

-- name: running_pushes_due
SELECT q.id, r.seq
FROM unnest($2::int[], $3::bigint[]) AS q (id, room)
CROSS JOIN LATERAL (
    SELECT seq, push_at FROM running WHERE queue_id = q.id AND push_at <= $1 ORDER BY push_at LIMIT q.room
) r
ORDER BY r.push_at

-- name: running_pushes_next
SELECT min(r.push_at)
FROM unnest($2::int[]) AS q (id)
CROSS JOIN LATERAL (
    SELECT push_at FROM running WHERE queue_id = q.id AND push_at > $1 ORDER BY push_at LIMIT 1
) r

-- name: running_refair
UPDATE running w
SET fair = CASE $2::text WHEN 'tenant' THEN b.tenant
                         WHEN 'workspace' THEN b.workspace
                         WHEN 'tag' THEN coalesce(b.tags::jsonb ->> $3::text, '') END
FROM bodies b WHERE b.seq = w.seq AND w.queue_id = $1

-- name: running_renew
-- The condition on the array makes the planner use the primary key, whatever it assumes about the size of the table.
UPDATE running r
SET expires_at = v.expires_at, last_heartbeat_at = v.last_heartbeat_at, progress_pct = v.progress_pct,
    progress_message = v.progress_message, cancel_reason = v.cancel_reason,
    cancel_requested_at = v.cancel_requested_at, cancel_signaled_at = v.cancel_signaled_at, carry = v.carry,
    worker_id = v.worker_id, push_at = v.push_at, deliveries = v.deliveries, started_at = v.started_at
FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::smallint[], $5::text[], $6::text[],
            $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::timestamptz[], $12::int[],
            $13::timestamptz[])
     AS v (seq, expires_at, last_heartbeat_at, progress_pct, progress_message, cancel_reason, cancel_requested_at,
           cancel_signaled_at, carry, worker_id, push_at, deliveries, started_at)
WHERE r.seq = v.seq AND r.seq = ANY($1)

-- name: running_take
DELETE FROM running WHERE seq = ANY($1)
RETURNING seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id,
    claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
