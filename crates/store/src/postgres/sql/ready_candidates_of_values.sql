SELECT r.seq, r.id, r.queue_id, r.priority, r.at, r.fair, r.message, r.attempt, r.fence, r.deadline, r.carry
FROM unnest($2::text[]) AS v (value)
CROSS JOIN LATERAL (
    SELECT * FROM ready WHERE queue_id = $1 AND fair = v.value ORDER BY priority, at, seq LIMIT $3 FOR UPDATE SKIP LOCKED
) r
