SELECT q.queue_id, q.name, q.paused, q.max_running, q.rate, q.burst, q.fairness_key, q.lease_ttl_ms, q.heartbeat_ms,
    q.no_dead_letter, q.bucket_tokens, q.bucket_at, q.fair_cursor, q.tenant, q.transport, q.push,
       (SELECT coalesce(sum(c.running), 0)::bigint FROM queue_counts c WHERE c.queue_id = q.queue_id), s.seen_at
FROM queues q LEFT JOIN queue_seen s ON s.queue_id = q.queue_id WHERE q.queue_id = $1
