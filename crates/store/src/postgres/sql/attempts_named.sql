SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, callback
FROM unnest($1::bigint[], $2::int[]) AS v (seq, attempt) JOIN attempts USING (seq, attempt)
