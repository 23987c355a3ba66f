SELECT queue_id, name, transport, lease_ttl_ms FROM queues WHERE transport IS NOT NULL ORDER BY queue_id
