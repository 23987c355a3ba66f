SELECT q.queue_id, q.name, q.lease_ttl_ms, q.transport IS ?1, coalesce(o.rows, 0), coalesce(o.published, 0),
    coalesce(c.ready, 0), coalesce(c.running, 0)
FROM queues q
LEFT JOIN (SELECT queue_id, count(*) AS rows, count(published_at) AS published
           FROM outbox WHERE transport = ?1 GROUP BY queue_id) o ON o.queue_id = q.queue_id
LEFT JOIN (SELECT queue_id, sum(ready) AS ready, sum(running) AS running
           FROM queue_counts GROUP BY queue_id) c ON c.queue_id = q.queue_id
WHERE q.transport = ?1 OR o.rows > 0 ORDER BY q.queue_id
