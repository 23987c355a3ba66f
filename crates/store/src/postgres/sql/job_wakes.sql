-- name: job_queues
SELECT q.queue_id, q.name, q.paused, q.max_running, q.rate, q.burst, q.fairness_key, q.lease_ttl_ms, q.heartbeat_ms,
    q.no_dead_letter, q.bucket_tokens, q.bucket_at, q.fair_cursor, q.tenant, q.transport, q.push, q.strict, q.dispatch,
    c.ready, c.running
FROM queues q CROSS JOIN LATERAL (
    SELECT coalesce(sum(ready), 0)::bigint AS ready, coalesce(sum(running), 0)::bigint AS running
    FROM queue_counts n WHERE n.queue_id = q.queue_id
) c
WHERE q.dispatch IS NOT NULL AND q.push IS NULL AND ($1::text IS NULL OR q.dispatch::jsonb ->> 'wake' = $1)
    AND c.ready > 0
ORDER BY q.queue_id

-- name: job_ready
SELECT a.queue_id, r.id, r.message, o.published_at
FROM unnest($1::int[], $2::smallint[], $3::bool[], $4::bigint[]) WITH ORDINALITY AS a (queue_id, priority, held, room, n)
CROSS JOIN LATERAL (
    SELECT seq, id, message, priority, at FROM ready
    WHERE queue_id = a.queue_id AND priority <= a.priority
        AND (NOT a.held OR carry::jsonb #>> '{spec,rebuild}' = 'true')
    ORDER BY priority, at, seq + 0 LIMIT a.room
) r
LEFT JOIN outbox o ON o.id = r.message
ORDER BY a.n, r.priority, r.at, r.seq

-- name: job_wakes
SELECT o.id, o.seq, o.created_at, o.published_at,
    EXISTS (SELECT FROM ready r WHERE r.seq = o.seq AND r.message = o.id)
FROM outbox o WHERE o.queue_id = $1 AND o.id + 0 > $2 ORDER BY o.id + 0 LIMIT $3
