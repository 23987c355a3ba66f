-- The condition on the array makes the planner go through the primary key, whatever it believes about the table's size.
UPDATE running r
SET expires_at = v.expires_at, last_heartbeat_at = v.last_heartbeat_at, progress_pct = v.progress_pct,
    progress_message = v.progress_message, cancel_reason = v.cancel_reason,
    cancel_requested_at = v.cancel_requested_at, cancel_signaled_at = v.cancel_signaled_at, carry = v.carry,
    worker_id = v.worker_id, push_at = v.push_at
FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::smallint[], $5::text[], $6::text[],
            $7::timestamptz[], $8::timestamptz[], $9::text[], $10::text[], $11::timestamptz[])
     AS v (seq, expires_at, last_heartbeat_at, progress_pct, progress_message, cancel_reason, cancel_requested_at,
           cancel_signaled_at, carry, worker_id, push_at)
WHERE r.seq = v.seq AND r.seq = ANY($1)
