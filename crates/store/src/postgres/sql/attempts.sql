-- name: attempts_delete
DELETE FROM attempts WHERE seq = ANY($1)

-- name: attempts_delete_named
DELETE FROM attempts a USING unnest($1::bigint[], $2::int[]) AS v (seq, attempt)
WHERE a.seq = v.seq AND a.attempt = v.attempt AND a.seq = ANY($1)

-- name: attempts_get
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM attempts WHERE seq = ANY($1) ORDER BY seq, attempt

-- name: attempts_named
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM unnest($1::bigint[], $2::int[]) AS v (seq, attempt) JOIN attempts USING (seq, attempt)

-- name: attempts_page
SELECT seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state,
    attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback, retry_at
FROM (
    SELECT *, row_number() OVER w AS place,
        sum(coalesce(octet_length(failure), 0) + coalesce(octet_length(evidence), 0) + coalesce(octet_length(callback), 0))
            OVER w AS bytes
    FROM attempts WHERE seq = $1 AND attempt > $2 WINDOW w AS (ORDER BY attempt)
) a WHERE place = 1 OR (place <= $3 AND bytes <= $4) ORDER BY attempt

-- name: attempts_put
INSERT INTO attempts (seq, attempt, attempt_id, token, fence, worker_id, granted_at, last_heartbeat_at, ended_at,
    attempt_state, attempt_reason, failure, progress_pct, progress_message, receipt, evidence, metrics, callback,
    retry_at)
SELECT * FROM unnest($1::bigint[], $2::int[], $3::uuid[], $4::uuid[], $5::bigint[], $6::text[], $7::timestamptz[],
    $8::timestamptz[], $9::timestamptz[], $10::smallint[], $11::smallint[], $12::text[], $13::smallint[], $14::text[],
    $15::smallint[], $16::text[], $17::text[], $18::text[], $19::timestamptz[])
ON CONFLICT (seq, attempt) DO UPDATE
SET attempt_id = excluded.attempt_id, token = excluded.token, fence = excluded.fence, worker_id = excluded.worker_id,
    granted_at = excluded.granted_at, last_heartbeat_at = excluded.last_heartbeat_at, ended_at = excluded.ended_at,
    attempt_state = excluded.attempt_state, attempt_reason = excluded.attempt_reason, failure = excluded.failure,
    progress_pct = excluded.progress_pct, progress_message = excluded.progress_message, receipt = excluded.receipt,
    evidence = excluded.evidence, metrics = excluded.metrics, callback = excluded.callback,
    retry_at = excluded.retry_at
