-- name: queue_delete
DELETE FROM queues WHERE queue_id = $1

-- name: queue_lock
-- Stronger than the lock of `queues_lock`: it keeps others from inserting rows that refer to the queue.
SELECT queue_id FROM queues WHERE queue_id = $1 FOR UPDATE

-- name: queue_names
SELECT queue_id, name FROM queue_names WHERE queue_id = ANY($1)

-- name: queue_save
UPDATE queues
SET paused = $2, max_running = $3, rate = $4, burst = $5, fairness_key = $6, lease_ttl_ms = $7, heartbeat_ms = $8,
    no_dead_letter = $9, bucket_tokens = $10, bucket_at = $11, fair_cursor = $12, transport = $13, push = $14,
    strict = $15, dispatch = $16
WHERE queue_id = $1

-- name: queue_seen_prune
DELETE FROM queue_seen WHERE NOT EXISTS (SELECT 1 FROM queues q WHERE q.queue_id = queue_seen.queue_id)

-- name: queue_seen_put
INSERT INTO queue_seen (queue_id, seen_at)
SELECT queue_id, $2 FROM (
    SELECT queue_id FROM queues WHERE name = ANY($1)
    UNION
    SELECT queue_id FROM queues q
    WHERE dispatch IS NOT NULL AND 'dag::' || (dispatch::jsonb ->> 'wake') = ANY($1)
        AND EXISTS (SELECT FROM ready r WHERE r.queue_id = q.queue_id)
) seen ORDER BY queue_id
ON CONFLICT (queue_id) DO UPDATE SET seen_at = greatest(queue_seen.seen_at, excluded.seen_at)

-- name: queue_stats
SELECT q.queue_id, coalesce(sum(c.blocked), 0)::bigint, coalesce(sum(c.scheduled), 0)::bigint, coalesce(sum(c.ready), 0)::bigint,
       coalesce(sum(c.running), 0)::bigint, coalesce(sum(c.finished), 0)::bigint,
       coalesce(sum(c.dead_lettered), 0)::bigint,
       (SELECT min(o.at) FROM generate_series(0, 9) p
        CROSS JOIN LATERAL (SELECT at FROM ready r WHERE r.queue_id = q.queue_id AND r.priority = p::smallint
                            ORDER BY at LIMIT 1) o)
FROM queues q LEFT JOIN queue_counts c ON c.queue_id = q.queue_id
WHERE q.queue_id = ANY($1) GROUP BY q.queue_id

-- name: queue_view
SELECT q.queue_id, q.name, q.paused, q.max_running, q.rate, q.burst, q.fairness_key, q.lease_ttl_ms, q.heartbeat_ms,
    q.no_dead_letter, q.bucket_tokens, q.bucket_at, q.fair_cursor, q.tenant, q.transport, q.push, q.strict, q.dispatch,
       (SELECT coalesce(sum(c.running), 0)::bigint FROM queue_counts c WHERE c.queue_id = q.queue_id), s.seen_at
FROM queues q LEFT JOIN queue_seen s ON s.queue_id = q.queue_id WHERE q.queue_id = $1

-- name: queues_all
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues

-- name: queues_hold
-- As `queues_of_names`, and nobody deletes them until the transaction ends.
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE name = ANY($1) ORDER BY queue_id FOR KEY SHARE

-- name: queues_list
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE name > $1 AND ($2::text IS NULL OR tenant IS NULL OR tenant = $2) ORDER BY name LIMIT $3

-- name: queues_lock
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE queue_id = ANY($1) ORDER BY queue_id FOR NO KEY UPDATE

-- name: queues_make
INSERT INTO queues (name, tenant, transport) SELECT unnest($1::text[]), unnest($2::text[]), $3 ON CONFLICT DO NOTHING

-- name: queues_make_for_jobs
INSERT INTO queues (name, tenant, transport, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms,
    no_dead_letter, push, strict, dispatch)
SELECT v.name, $1, CASE WHEN v.push IS NULL THEN $2::text END, v.max_running, v.rate, v.burst, v.fairness_key, v.lease_ttl_ms, v.heartbeat_ms, v.no_dead_letter,
    v.push, v.strict, v.dispatch
FROM unnest($3::text[], $4::int[], $5::float8[], $6::float8[], $7::text[], $8::bigint[], $9::bigint[], $10::bool[],
            $11::text[], $12::bool[], $13::text[])
     AS v (name, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter, push, strict,
           dispatch)
ON CONFLICT DO NOTHING

-- name: queues_of_ids
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE queue_id = ANY($1)

-- name: queues_of_names
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE name = ANY($1)

-- name: queues_of_push
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE push IS NOT NULL

-- name: queues_set_held
-- The queues are locked in their order, like by everybody else.
WITH held AS (
    SELECT q.queue_id, v.held
    FROM unnest($2::bigint[], $3::bool[]) AS v (job_id, held)
    JOIN dag_jobs j ON j.job_id = v.job_id AND j.org = $1
    JOIN queues q ON q.queue_id = j.queue_id
    ORDER BY q.queue_id FOR NO KEY UPDATE OF q
)
UPDATE queues q SET dispatch = (q.dispatch::jsonb || jsonb_build_object('held', h.held))::text
FROM held h WHERE q.queue_id = h.queue_id
