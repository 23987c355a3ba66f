INSERT INTO finished (seq, queue_id, ended, finished_at, result, failure, error_code, reason, dead_lettered_at, cancel_reason, attempt, fence, attempt_id, token, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state, attempt_reason, receipt, more)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
