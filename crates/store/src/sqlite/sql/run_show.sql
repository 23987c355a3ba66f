-- Stacks and checkpoints can be large, and a run has up to ten thousand tasks: they are shown with the task.
SELECT t.task, t.depends_on, b.id, b.task_key, b.operator, q.name,
    CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
         WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
         ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END END,
    coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0),
    CASE WHEN u.seq IS NOT NULL THEN u.granted_at
         WHEN instr(f.more, '"callback"') > 0 AND json_type(f.more, '$.callback') IS NOT NULL
         THEN json_extract(f.more, '$.callback.started_at') ELSE f.granted_at END, f.finished_at,
    u.progress_pct, u.progress_message, CASE WHEN instr(f.failure, '"stack"') > 0 THEN json_remove(f.failure, '$.stack') ELSE f.failure END, coalesce(f.cancel_reason, u.cancel_reason), s.at,
    CASE WHEN instr(u.carry, '"delivery"') > 0
         THEN json_object('delivery', json_extract(u.carry, '$.delivery')) END
FROM run_tasks t JOIN bodies b ON b.seq = t.task JOIN queues q ON q.queue_id = b.queue_id
LEFT JOIN blocked k ON k.seq = t.task LEFT JOIN scheduled s ON s.seq = t.task LEFT JOIN ready r ON r.seq = t.task
LEFT JOIN running u ON u.seq = t.task LEFT JOIN finished f ON f.seq = t.task
WHERE t.run = ? ORDER BY t.task
