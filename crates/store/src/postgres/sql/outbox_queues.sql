SELECT q.queue_id, q.name, q.transport, q.lease_ttl_ms,
    (SELECT count(*) FROM outbox o WHERE o.queue_id = q.queue_id AND o.published_at IS NOT NULL)
FROM queues q WHERE q.transport IS NOT NULL ORDER BY q.queue_id
