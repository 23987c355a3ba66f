-- Runs: tasks that depend on each other. The counts say how their tasks ended; the rest follows from them.
CREATE TABLE runs (
    seq           INTEGER PRIMARY KEY,
    id            BLOB NOT NULL CHECK (length(id) = 16),
    run_key       TEXT,
    tenant        TEXT NOT NULL,
    workspace     TEXT NOT NULL,
    owner         TEXT,
    fingerprint   BLOB NOT NULL CHECK (length(fingerprint) = 32),
    labels        TEXT,
    deadline      INTEGER,
    parent        BLOB,
    created_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    cancel_reason TEXT,
    open          INTEGER NOT NULL CHECK (open >= 0),
    succeeded     INTEGER NOT NULL CHECK (succeeded >= 0),
    failed        INTEGER NOT NULL CHECK (failed >= 0),
    skipped       INTEGER NOT NULL CHECK (skipped >= 0),
    canceled      INTEGER NOT NULL CHECK (canceled >= 0),
    CHECK ((open = 0) = (finished_at IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, workspace, run_key) WHERE run_key IS NOT NULL;

-- The tasks of a run, with what they were submitted to wait for: a list of their numbers.
CREATE TABLE run_tasks (
    task       INTEGER PRIMARY KEY,
    run        INTEGER NOT NULL,
    depends_on TEXT
) STRICT;
CREATE INDEX run_tasks_by_run ON run_tasks (run, task);

-- What has not been resolved yet: a row goes when the task before it ends.
CREATE TABLE run_edges (
    upstream   INTEGER NOT NULL,
    downstream INTEGER NOT NULL,
    PRIMARY KEY (upstream, downstream)
) STRICT, WITHOUT ROWID;

-- Tasks that wait for others of their run.
CREATE TABLE blocked (
    seq        INTEGER PRIMARY KEY,
    id         BLOB NOT NULL CHECK (length(id) = 16),
    queue_id   INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    waiting_on INTEGER NOT NULL CHECK (waiting_on > 0),
    at         INTEGER NOT NULL,
    fair       TEXT,
    deadline   INTEGER,
    carry      TEXT
) STRICT;
CREATE INDEX blocked_by_deadline ON blocked (deadline) WHERE deadline IS NOT NULL;

-- The run that a task was submitted in, and its name there.
ALTER TABLE bodies ADD COLUMN run_id BLOB;
ALTER TABLE bodies ADD COLUMN task_key TEXT;

-- 4 is skipped. What was carried over from another run has succeeded without an attempt.
DROP VIEW tasks;
DROP VIEW attempt_history;
ALTER TABLE finished RENAME TO finished_before;
CREATE TABLE finished (
    seq               INTEGER PRIMARY KEY,
    queue_id          INTEGER NOT NULL,
    ended             INTEGER NOT NULL CHECK (ended BETWEEN 1 AND 4),
    finished_at       INTEGER NOT NULL,
    result            TEXT,
    failure           TEXT,
    error_code        TEXT,
    reason            TEXT,
    dead_lettered_at  INTEGER,
    cancel_reason     TEXT,
    attempt           INTEGER NOT NULL CHECK (attempt >= 0),
    fence             INTEGER NOT NULL CHECK (fence >= 0),
    attempt_id        BLOB,
    token             BLOB,
    worker_id         TEXT,
    granted_at        INTEGER,
    last_heartbeat_at INTEGER,
    ended_at          INTEGER,
    attempt_state     INTEGER,
    attempt_reason    INTEGER,
    receipt           INTEGER,
    more              TEXT,
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND (attempt_id IS NOT NULL OR attempt = 0))),
    CHECK (ended = 1 OR result IS NULL),
    CHECK (ended = 2 OR (reason IS NULL AND dead_lettered_at IS NULL)),
    CHECK ((ended = 3) = (cancel_reason IS NOT NULL)),
    CHECK (attempt > 0 OR attempt_id IS NULL)
) STRICT;
INSERT INTO finished SELECT * FROM finished_before;
DROP TABLE finished_before;
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

CREATE VIEW tasks AS
SELECT lower(substr(hex(b.id), 1, 8) || '-' || substr(hex(b.id), 9, 4) || '-' || substr(hex(b.id), 13, 4) || '-'
             || substr(hex(b.id), 17, 4) || '-' || substr(hex(b.id), 21)) AS task_id,
       q.name AS queue, b.operator, b.tenant, b.owner, b.workspace, b.priority,
       hex(b.run_id) AS run_id, b.task_key,
       CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
            WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
            ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END
       END AS state,
       coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0) AS attempt,
       coalesce(u.fence, r.fence, s.fence, f.fence, 0) AS fence,
       coalesce(u.worker_id, f.worker_id) AS worker_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(s.at, r.at) / 1000.0, 'unixepoch') AS waiting_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.expires_at / 1000.0, 'unixepoch') AS lease_expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.finished_at / 1000.0, 'unixepoch') AS finished_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.dead_lettered_at / 1000.0, 'unixepoch') AS dead_lettered_at,
       f.reason, f.error_code, f.cancel_reason, b.payload, f.result, f.failure, b.seq
FROM bodies b JOIN queues q USING (queue_id)
LEFT JOIN blocked k ON k.seq = b.seq
LEFT JOIN scheduled s ON s.seq = b.seq LEFT JOIN ready r ON r.seq = b.seq
LEFT JOIN running u ON u.seq = b.seq LEFT JOIN finished f ON f.seq = b.seq;

CREATE VIEW attempt_history AS
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state, attempt_reason, receipt
FROM attempts
UNION ALL
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state, attempt_reason, receipt
FROM finished WHERE attempt_id IS NOT NULL
UNION ALL
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, NULL, NULL, NULL, NULL FROM running;
