SELECT min(r.push_at)
FROM unnest($2::int[]) AS q (id)
CROSS JOIN LATERAL (
    SELECT push_at FROM running WHERE queue_id = q.id AND push_at > $1 ORDER BY push_at LIMIT 1
) r
