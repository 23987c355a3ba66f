-- name: finished_dead_count
SELECT count(*) FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > ?1
  AND (?2 IS NULL OR f.queue_id = ?2)
  AND (?3 IS NULL OR b.operator = ?3)
  AND (?4 IS NULL OR f.reason = ?4)
  AND (?5 IS NULL OR f.error_code = ?5)
  AND (?6 IS NULL OR b.tenant = ?6)
  AND (?7 IS NULL OR f.dead_lettered_at >= ?7)
  AND (?8 IS NULL OR f.dead_lettered_at < ?8)
  AND (?9 IS NULL OR f.seq IN (SELECT value FROM json_each(?9)))
  AND (?10 IS NULL OR b.owner = ?10)
  AND ?11 IS NULL

-- name: finished_dead_list
SELECT f.seq FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > ?1
  AND (?2 IS NULL OR f.queue_id = ?2)
  AND (?3 IS NULL OR b.operator = ?3)
  AND (?4 IS NULL OR f.reason = ?4)
  AND (?5 IS NULL OR f.error_code = ?5)
  AND (?6 IS NULL OR b.tenant = ?6)
  AND (?7 IS NULL OR f.dead_lettered_at >= ?7)
  AND (?8 IS NULL OR f.dead_lettered_at < ?8)
  AND (?9 IS NULL OR f.seq IN (SELECT value FROM json_each(?9)))
  AND (?10 IS NULL OR b.owner = ?10)
ORDER BY f.seq LIMIT ?11

-- name: finished_delete
DELETE FROM finished WHERE seq = ?

-- name: finished_get
SELECT f.seq, f.queue_id, f.ended, f.finished_at, f.result, f.failure, f.stack, f.error_code, f.reason, f.dead_lettered_at,
    f.cancel_reason, f.attempt, f.fence, f.attempt_id, f.token, f.worker_id, f.granted_at, f.last_heartbeat_at,
    f.ended_at, f.attempt_state, f.attempt_reason, f.receipt, f.more, b.id, b.spec
FROM finished f JOIN bodies b ON b.seq = f.seq WHERE f.seq = ?

-- name: finished_insert
INSERT INTO finished (seq, queue_id, ended, finished_at, result, failure, stack, error_code, reason, dead_lettered_at,
    cancel_reason, attempt, fence, attempt_id, token, worker_id, granted_at, last_heartbeat_at, ended_at,
    attempt_state, attempt_reason, receipt, deliveries, started_at, more)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: finished_prune_candidates
SELECT f.seq, f.finished_at, f.dead_lettered_at, f.queue_id, b.created_at, b.idempotency_key IS NOT NULL AS has_key,
    b.run_id IS NOT NULL AS in_run
FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.seq > ? ORDER BY f.seq LIMIT ?

-- name: finished_result_sizes
SELECT length(CAST(result AS BLOB)) FROM finished WHERE seq = ? AND result IS NOT NULL

-- name: finished_results
SELECT result FROM finished WHERE seq = ?
