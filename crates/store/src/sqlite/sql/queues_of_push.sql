SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter, bucket_tokens, bucket_at, fair_cursor, tenant, transport, push
FROM queues WHERE push IS NOT NULL
