SELECT q.queue_id, coalesce(sum(c.scheduled), 0)::bigint, coalesce(sum(c.ready), 0)::bigint,
       coalesce(sum(c.running), 0)::bigint, coalesce(sum(c.finished), 0)::bigint,
       coalesce(sum(c.dead_lettered), 0)::bigint,
       (SELECT min(o.at) FROM generate_series(0, 9) p
        CROSS JOIN LATERAL (SELECT at FROM ready r WHERE r.queue_id = q.queue_id AND r.priority = p::smallint
                            ORDER BY at LIMIT 1) o)
FROM queues q LEFT JOIN queue_counts c ON c.queue_id = q.queue_id
WHERE q.queue_id = ANY($1) GROUP BY q.queue_id
