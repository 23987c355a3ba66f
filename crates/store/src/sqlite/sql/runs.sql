-- name: run_doom
-- Once pruning of a run has started, finish it even if the retention settings change.
UPDATE runs SET finished_at = 0 WHERE seq = ?

-- name: run_insert
INSERT INTO runs (seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at,
    finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled, state)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: run_save
UPDATE runs SET finished_at = ?2, cancel_reason = ?3, open = ?4, succeeded = ?5, failed = ?6, skipped = ?7,
    canceled = ?8, state = ?9
WHERE seq = ?1

-- name: run_show
-- Without stacks and checkpoints, which can be large: a run has up to ten thousand tasks.
SELECT t.task, t.depends_on, s.id, s.task_key, s.operator, q.name, s.state, s.attempt, s.started_at, s.finished_at,
    s.progress_pct, s.progress_message, s.failure, s.cancel_reason, s.due_at
FROM run_tasks t JOIN task_state s ON s.seq = t.task JOIN queue_names q ON q.queue_id = s.queue_id
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
  AND (?9 IS NULL OR state = ?9)
  AND (?12 IS NULL OR id BETWEEN ?12 AND ?13 OR id BETWEEN ?14 AND ?15)
ORDER BY seq DESC LIMIT ?10

-- name: runs_nth
-- Where the newest so many runs begin.
SELECT seq FROM runs ORDER BY seq DESC LIMIT 1 OFFSET ?1

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
