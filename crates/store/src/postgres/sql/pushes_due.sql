SELECT q.id, r.seq
FROM unnest($2::int[], $3::bigint[]) AS q (id, room)
CROSS JOIN LATERAL (
    SELECT seq, push_at FROM running WHERE queue_id = q.id AND push_at <= $1 ORDER BY push_at LIMIT q.room
) r
ORDER BY r.push_at
