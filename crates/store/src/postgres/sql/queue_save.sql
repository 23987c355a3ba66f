UPDATE queues
SET paused = $2, max_running = $3, rate = $4, burst = $5, fairness_key = $6, lease_ttl_ms = $7, heartbeat_ms = $8,
    no_dead_letter = $9, bucket_tokens = $10, bucket_at = $11, fair_cursor = $12, transport = $13, push = $14
WHERE queue_id = $1
