-- name: run_doom
-- Once pruning of a run has started, finish it even if the retention settings change.
UPDATE runs SET finished_at = 0 WHERE seq = ?

-- name: run_insert
INSERT INTO runs (seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at,
    finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: run_save
UPDATE runs SET finished_at = ?2, cancel_reason = ?3, open = ?4, succeeded = ?5, failed = ?6, skipped = ?7,
    canceled = ?8
WHERE seq = ?1

-- name: run_show
-- Without stacks and checkpoints, which can be large: a run has up to ten thousand tasks.
SELECT t.task, t.depends_on, b.id, b.task_key, b.operator, q.name,
    CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
         WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
         ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END END,
    coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0),
    CASE WHEN u.seq IS NOT NULL THEN u.granted_at
         WHEN instr(f.more, '"callback"') > 0 AND json_type(f.more, '$.callback') IS NOT NULL
         THEN json_extract(f.more, '$.callback.started_at') ELSE f.granted_at END, f.finished_at,
    u.progress_pct, u.progress_message, CASE WHEN instr(f.failure, '"stack"') > 0 THEN json_remove(f.failure,
    '$.stack') ELSE f.failure END, coalesce(f.cancel_reason, u.cancel_reason), s.at,
    CASE WHEN instr(u.carry, '"delivery"') > 0
         THEN json_object('delivery', json_extract(u.carry, '$.delivery')) END
FROM run_tasks t JOIN bodies b ON b.seq = t.task JOIN queues q ON q.queue_id = b.queue_id
LEFT JOIN blocked k ON k.seq = t.task LEFT JOIN scheduled s ON s.seq = t.task LEFT JOIN ready r ON r.seq = t.task
LEFT JOIN running u ON u.seq = t.task LEFT JOIN finished f ON f.seq = t.task
WHERE t.run = ? ORDER BY t.task

-- name: run_weight
-- Reads sizes only, not the payloads and results.
SELECT coalesce(sum(octet_length(b.payload)), 0)
    + coalesce(sum(CASE WHEN f.ended = 1 THEN octet_length(f.result) END), 0)
FROM run_tasks t JOIN bodies b ON b.seq = t.task LEFT JOIN finished f ON f.seq = t.task WHERE t.run = ?

-- name: runs_delete
DELETE FROM runs WHERE seq = ?

-- name: runs_get
SELECT seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at, finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled
FROM runs WHERE seq = ?

-- name: runs_list
SELECT seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at, finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled
FROM runs WHERE seq < ?1 AND seq >= ?11
  AND (?2 IS NULL OR tenant = ?2)
  AND (?3 IS NULL OR owner = ?3)
  AND (?4 IS NULL OR workspace = ?4)
  AND (?5 IS NULL OR run_key = ?5)
  AND (?6 IS NULL OR instr(',' || substr(labels, 2), ?6) > 0)
  AND (?7 IS NULL OR created_at >= ?7)
  AND (?8 IS NULL OR created_at < ?8)
  AND (?9 IS NULL OR ?9 =
    CASE WHEN open > 0 THEN CASE WHEN cancel_reason IS NULL THEN 'RUNNING' ELSE 'CANCELLING' END
         WHEN canceled > 0 THEN 'CANCELLED' WHEN failed > 0 THEN 'FAILED' ELSE 'SUCCEEDED' END)
ORDER BY seq DESC LIMIT ?10

-- name: runs_of_keys
SELECT id, owner, fingerprint FROM runs WHERE tenant = ? AND workspace = ? AND run_key = ?

-- name: runs_prune
-- A run is pruned together with its tasks. A failed run is kept as long as a dead letter.
SELECT seq FROM runs
WHERE finished_at IS NOT NULL
  -- Idempotency keys of the run and of its tasks are kept for a minimum time.
  AND (created_at <= ?1 OR (run_key IS NULL AND NOT EXISTS (
      SELECT 1 FROM run_tasks t JOIN bodies b ON b.seq = t.task WHERE t.run = runs.seq AND b.idempotency_key IS NOT NULL)))
  AND (finished_at <= ?2 OR (failed = 0 AND finished_at <= ?3))
ORDER BY finished_at LIMIT ?4
