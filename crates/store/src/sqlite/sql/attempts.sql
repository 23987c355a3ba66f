-- name: attempts_delete
DELETE FROM attempts WHERE seq = ?

-- name: attempts_delete_named
DELETE FROM attempts WHERE seq = ? AND attempt = ?

-- name: attempts_get
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM attempts WHERE seq = ? ORDER BY attempt

-- name: attempts_named
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM attempts WHERE seq = ? AND attempt = ?

-- name: attempts_page
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM attempts WHERE seq = ?1 AND attempt > ?2 ORDER BY attempt LIMIT ?3

-- name: attempts_put
INSERT OR REPLACE INTO attempts (seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at,
    ended_at, attempt_state, attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback,
    retry_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
