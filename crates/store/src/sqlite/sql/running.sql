-- name: running_delete
DELETE FROM running WHERE seq = ?

-- name: running_get
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE seq = ?

-- name: running_insert
INSERT INTO running (seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt,
    attempt_id, claim_id, incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms,
    heartbeat_ms, cancel_reason, cancel_requested_at, cancel_signaled_at, carry, push_at, deliveries, started_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: running_longest_lease
SELECT coalesce(max(lease_ttl_ms), 0) FROM running

-- name: running_of_claim
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE worker_id = ? AND claim_id = ?

-- name: running_of_holder
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE worker_id = ?

-- name: running_of_worker
SELECT seq, id, queue_id, priority, fair, message, worker_id, token, fence, expires_at, attempt, attempt_id, claim_id,
    incarnation, granted_at, last_heartbeat_at, progress_pct, progress_message, lease_ttl_ms, heartbeat_ms,
    cancel_reason, cancel_requested_at, cancel_signaled_at, carry
FROM running WHERE worker_id = ? AND incarnation < ? ORDER BY seq LIMIT ?

-- name: running_pushes_due
SELECT seq FROM running WHERE queue_id = ?1 AND push_at <= ?2 ORDER BY push_at LIMIT ?3

-- name: running_pushes_next
SELECT min(push_at) FROM running WHERE queue_id = ?1 AND push_at > ?2

-- name: running_refair
UPDATE running SET fair = (
    SELECT CASE ?2 WHEN 'tenant' THEN b.tenant
                   WHEN 'workspace' THEN b.workspace
                   WHEN 'tag' THEN coalesce((SELECT tag.value FROM json_each(b.tags) tag WHERE tag.key = ?3), '') END
    FROM bodies b WHERE b.seq = running.seq)
WHERE queue_id = ?1

-- name: running_renew
UPDATE running
SET expires_at = ?2, last_heartbeat_at = ?3, progress_pct = ?4, progress_message = ?5, cancel_reason = ?6,
    cancel_requested_at = ?7, cancel_signaled_at = ?8, carry = ?9, worker_id = ?10, push_at = ?11,
    deliveries = ?12, started_at = ?13
WHERE seq = ?1
