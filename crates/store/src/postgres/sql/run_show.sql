-- Stacks and checkpoints can be large, and a run has up to ten thousand tasks: they are shown with the task.
SELECT t.task, t.depends_on, b.id, b.task_key, b.operator, q.name,
    CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
         WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
         ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END END,
    coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0),
    CASE WHEN u.seq IS NOT NULL THEN u.granted_at
         WHEN strpos(f.more, '"callback"') > 0 AND (f.more::json -> 'callback') IS NOT NULL
         THEN to_timestamp((f.more::json -> 'callback' ->> 'started_at')::bigint / 1000.0) ELSE f.granted_at END, f.finished_at,
    u.progress_pct, u.progress_message, CASE WHEN strpos(f.failure, '"stack"') > 0 THEN (f.failure::jsonb - 'stack')::text ELSE f.failure END, coalesce(f.cancel_reason, u.cancel_reason), s.at,
    CASE WHEN strpos(u.carry, '"delivery"') > 0
         THEN json_build_object('delivery', u.carry::json -> 'delivery')::text END
FROM run_tasks t JOIN bodies b ON b.seq = t.task JOIN queues q ON q.queue_id = b.queue_id
LEFT JOIN blocked k ON k.seq = t.task LEFT JOIN scheduled s ON s.seq = t.task LEFT JOIN ready r ON r.seq = t.task
LEFT JOIN running u ON u.seq = t.task LEFT JOIN finished f ON f.seq = t.task
WHERE t.run = $1 ORDER BY t.task
