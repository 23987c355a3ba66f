SELECT f.seq, f.queue_id, f.ended, f.finished_at, f.result, f.failure, f.error_code, f.reason, f.dead_lettered_at,
    f.cancel_reason, f.attempt, f.fence, f.attempt_id, f.token, f.worker_id, f.granted_at, f.last_heartbeat_at,
    f.ended_at, f.attempt_state, f.attempt_reason, f.receipt, f.more, b.id, b.spec
FROM finished f JOIN bodies b ON b.seq = f.seq WHERE f.seq = ANY($1) ORDER BY f.seq FOR UPDATE OF f
