SELECT transport, count(*) FILTER (WHERE due_at IS NOT NULL), count(*) FILTER (WHERE failed_at IS NOT NULL),
    min(created_at) FILTER (WHERE due_at IS NOT NULL)
FROM outbox WHERE due_at IS NOT NULL OR failed_at IS NOT NULL GROUP BY transport
