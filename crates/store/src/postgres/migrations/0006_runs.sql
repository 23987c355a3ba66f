-- Runs: tasks that depend on each other. The counts say how their tasks ended; the rest follows from them.
CREATE TABLE runs (
    seq           bigint PRIMARY KEY,
    id            uuid NOT NULL,
    run_key       text,
    tenant        text NOT NULL,
    workspace     text NOT NULL,
    owner         text,
    fingerprint   bytea NOT NULL CHECK (length(fingerprint) = 32),
    labels        text,
    deadline      timestamptz,
    parent        uuid,
    created_at    timestamptz NOT NULL,
    finished_at   timestamptz,
    cancel_reason text,
    open          int NOT NULL CHECK (open >= 0),
    succeeded     int NOT NULL CHECK (succeeded >= 0),
    failed        int NOT NULL CHECK (failed >= 0),
    skipped       int NOT NULL CHECK (skipped >= 0),
    canceled      int NOT NULL CHECK (canceled >= 0),
    CHECK ((open = 0) = (finished_at IS NOT NULL))
) WITH (
    -- Every end of a task rewrites the row in place: no index on what it changes.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, workspace, run_key) WHERE run_key IS NOT NULL;

-- The tasks of a run, with what they were submitted to wait for: a list of their numbers.
CREATE TABLE run_tasks (
    task       bigint PRIMARY KEY,
    run        bigint NOT NULL,
    depends_on text
);
CREATE INDEX run_tasks_by_run ON run_tasks (run, (task + 0));

-- What has not been resolved yet: a row goes when the task before it ends.
CREATE TABLE run_edges (
    upstream   bigint NOT NULL,
    downstream bigint NOT NULL,
    PRIMARY KEY (upstream, downstream)
);

-- Tasks that wait for others of their run.
CREATE TABLE blocked (
    seq        bigint PRIMARY KEY,
    id         uuid NOT NULL,
    queue_id   int NOT NULL,
    priority   smallint NOT NULL,
    waiting_on int NOT NULL CHECK (waiting_on > 0),
    at         timestamptz NOT NULL,
    fair       text COLLATE "C",
    deadline   timestamptz,
    carry      text
) WITH (fillfactor = 70);
CREATE INDEX blocked_by_deadline ON blocked (deadline) WHERE deadline IS NOT NULL;

-- The run that a task was submitted in, and its name there.
ALTER TABLE bodies ADD COLUMN run_id uuid;
ALTER TABLE bodies ADD COLUMN task_key text;

-- 4 is skipped. What was carried over from another run has succeeded without an attempt.
ALTER TABLE finished DROP CONSTRAINT finished_ended_check;
ALTER TABLE finished DROP CONSTRAINT finished_check;
ALTER TABLE finished ADD CONSTRAINT finished_ended_check CHECK (ended BETWEEN 1 AND 4) NOT VALID;
ALTER TABLE finished ADD CONSTRAINT finished_check
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND (attempt_id IS NOT NULL OR attempt = 0))) NOT VALID;

DROP VIEW tasks;
CREATE VIEW tasks AS
SELECT b.id AS task_id,
       q.name AS queue, b.operator, b.tenant, b.owner, b.workspace, b.priority, b.run_id, b.task_key,
       CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
            WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
            ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END
       END AS state,
       coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0) AS attempt,
       coalesce(u.fence, r.fence, s.fence, f.fence, 0) AS fence,
       coalesce(u.worker_id, f.worker_id) AS worker_id,
       b.created_at AS created_at,
       coalesce(s.at, r.at) AS waiting_at,
       u.expires_at AS lease_expires_at,
       f.finished_at AS finished_at,
       f.dead_lettered_at AS dead_lettered_at,
       f.reason, f.error_code, f.cancel_reason, b.payload, f.result, f.failure, b.seq
FROM bodies b JOIN queues q USING (queue_id)
LEFT JOIN blocked k ON k.seq = b.seq
LEFT JOIN scheduled s ON s.seq = b.seq LEFT JOIN ready r ON r.seq = b.seq
LEFT JOIN running u ON u.seq = b.seq LEFT JOIN finished f ON f.seq = b.seq;
