UPDATE running
SET expires_at = ?2, last_heartbeat_at = ?3, progress_pct = ?4, progress_message = ?5, cancel_reason = ?6,
    cancel_requested_at = ?7, cancel_signaled_at = ?8, carry = ?9, worker_id = ?10, push_at = ?11
WHERE seq = ?1
