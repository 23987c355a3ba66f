INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id, incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms, cancel_reason, cancel_requested_at, cancel_signaled_at, carry, push_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
