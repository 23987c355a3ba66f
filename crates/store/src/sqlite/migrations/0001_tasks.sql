-- Times are milliseconds since 1970-01-01T00:00:00Z, ids are 16 bytes. The views at the end show both in words.

CREATE TABLE meta (
    only_row    INTEGER PRIMARY KEY CHECK (only_row = 1),
    next_number INTEGER NOT NULL,
    alive_at    INTEGER NOT NULL,
    grace_until INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 1, 0, 0);

CREATE TABLE queues (
    queue_id       INTEGER PRIMARY KEY,
    name           TEXT NOT NULL UNIQUE,
    paused         INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    max_running    INTEGER CHECK (max_running >= 0),
    rate           REAL CHECK (rate > 0),
    burst          REAL CHECK (burst >= 1),
    fairness_key   TEXT,
    lease_ttl_ms   INTEGER CHECK (lease_ttl_ms > 0),
    heartbeat_ms   INTEGER CHECK (heartbeat_ms > 0),
    no_dead_letter INTEGER NOT NULL DEFAULT 0 CHECK (no_dead_letter IN (0, 1)),
    bucket_tokens  REAL,
    bucket_at      INTEGER,
    fair_cursor    TEXT,
    CHECK ((rate IS NULL) = (burst IS NULL)),
    CHECK ((bucket_tokens IS NULL) = (bucket_at IS NULL))
) STRICT;

-- How many rows each queue has per place: changed with the rows, so that nobody has to count them.
CREATE TABLE queue_counts (
    queue_id      INTEGER PRIMARY KEY,
    scheduled     INTEGER NOT NULL DEFAULT 0 CHECK (scheduled >= 0),
    ready         INTEGER NOT NULL DEFAULT 0 CHECK (ready >= 0),
    running       INTEGER NOT NULL DEFAULT 0 CHECK (running >= 0),
    finished      INTEGER NOT NULL DEFAULT 0 CHECK (finished >= 0),
    dead_lettered INTEGER NOT NULL DEFAULT 0 CHECK (dead_lettered >= 0)
) STRICT;

CREATE TABLE queue_seen (
    queue_id INTEGER PRIMARY KEY,
    seen_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE workers (
    worker_id   TEXT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    seen_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What was submitted: written once.
CREATE TABLE bodies (
    seq             INTEGER PRIMARY KEY,
    id              BLOB NOT NULL CHECK (length(id) = 16),
    queue_id        INTEGER NOT NULL,
    operator        TEXT NOT NULL,
    tenant          TEXT NOT NULL,
    workspace       TEXT NOT NULL,
    priority        INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    payload         TEXT NOT NULL,
    spec            TEXT,
    tags            TEXT,
    idempotency_key TEXT,
    fingerprint     BLOB CHECK (length(fingerprint) = 32),
    traceparent     TEXT,
    created_at      INTEGER NOT NULL,
    run_at          INTEGER NOT NULL,
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
) STRICT;
CREATE UNIQUE INDEX bodies_by_key ON bodies (tenant, workspace, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Due later.
CREATE TABLE scheduled (
    seq      INTEGER PRIMARY KEY,
    id       BLOB NOT NULL CHECK (length(id) = 16),
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    fair     TEXT,
    message  INTEGER NOT NULL,
    attempt  INTEGER NOT NULL CHECK (attempt >= 0),
    fence    INTEGER NOT NULL CHECK (fence >= 0),
    deadline INTEGER,
    carry    TEXT
) STRICT;
CREATE INDEX scheduled_by_time ON scheduled (at);
CREATE INDEX scheduled_by_deadline ON scheduled (deadline) WHERE deadline IS NOT NULL;

-- May be granted now.
CREATE TABLE ready (
    seq      INTEGER PRIMARY KEY,
    id       BLOB NOT NULL CHECK (length(id) = 16),
    queue_id INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    fair     TEXT,
    message  INTEGER NOT NULL,
    attempt  INTEGER NOT NULL CHECK (attempt >= 0),
    fence    INTEGER NOT NULL CHECK (fence >= 0),
    deadline INTEGER,
    carry    TEXT
) STRICT;
CREATE INDEX ready_in_order ON ready (queue_id, priority, at, seq);
CREATE INDEX ready_by_fairness ON ready (queue_id, fair, priority, at, seq) WHERE fair IS NOT NULL;
CREATE INDEX ready_by_deadline ON ready (deadline) WHERE deadline IS NOT NULL;

-- Held: the lease itself.
CREATE TABLE running (
    seq                 INTEGER PRIMARY KEY,
    id                  BLOB NOT NULL CHECK (length(id) = 16),
    queue_id            INTEGER NOT NULL,
    priority            INTEGER NOT NULL,
    fair                TEXT,
    message             INTEGER NOT NULL,
    worker_id           TEXT NOT NULL,
    token               BLOB NOT NULL CHECK (length(token) = 16),
    fence               INTEGER NOT NULL CHECK (fence >= 1),
    expires_at          INTEGER NOT NULL,
    attempt             INTEGER NOT NULL CHECK (attempt >= 1),
    attempt_id          BLOB NOT NULL CHECK (length(attempt_id) = 16),
    claim_id            TEXT,
    incarnation         TEXT,
    granted_at          INTEGER NOT NULL,
    last_heartbeat_at   INTEGER,
    progress_pct        INTEGER CHECK (progress_pct BETWEEN 0 AND 100),
    progress_message    TEXT,
    lease_ttl_ms        INTEGER NOT NULL,
    heartbeat_ms        INTEGER NOT NULL,
    cancel_reason       TEXT,
    cancel_requested_at INTEGER,
    cancel_signaled_at  INTEGER,
    carry               TEXT,
    CHECK ((cancel_reason IS NULL) = (cancel_requested_at IS NULL)),
    CHECK (cancel_signaled_at IS NULL OR cancel_requested_at IS NOT NULL)
) STRICT;
CREATE INDEX running_by_queue ON running (queue_id);
CREATE INDEX running_by_claim ON running (worker_id, claim_id) WHERE claim_id IS NOT NULL;

-- Ended. `ended` is 1 succeeded, 2 failed, 3 canceled. The columns from `attempt_id` on are the final attempt.
CREATE TABLE finished (
    seq               INTEGER PRIMARY KEY,
    queue_id          INTEGER NOT NULL,
    ended             INTEGER NOT NULL CHECK (ended IN (1, 2, 3)),
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
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND attempt_id IS NOT NULL)),
    CHECK (ended = 1 OR result IS NULL),
    CHECK (ended = 2 OR (reason IS NULL AND dead_lettered_at IS NULL)),
    CHECK ((ended = 3) = (cancel_reason IS NOT NULL)),
    CHECK (attempt > 0 OR attempt_id IS NULL)
) STRICT;
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

-- Ended attempts that others followed, or will.
CREATE TABLE attempts (
    seq               INTEGER NOT NULL,
    attempt           INTEGER NOT NULL CHECK (attempt >= 1),
    attempt_id        BLOB NOT NULL CHECK (length(attempt_id) = 16),
    token             BLOB NOT NULL CHECK (length(token) = 16),
    fence             INTEGER NOT NULL,
    worker_id         TEXT NOT NULL,
    granted_at        INTEGER NOT NULL,
    last_heartbeat_at INTEGER,
    ended_at          INTEGER NOT NULL,
    attempt_state     INTEGER NOT NULL,
    attempt_reason    INTEGER NOT NULL,
    failure           TEXT,
    progress_pct      INTEGER,
    progress_message  TEXT,
    receipt           INTEGER,
    evidence          TEXT,
    PRIMARY KEY (seq, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE redrives (
    redrive_id BLOB PRIMARY KEY CHECK (length(redrive_id) = 16),
    key        TEXT UNIQUE,
    filter     TEXT NOT NULL,
    rate       REAL CHECK (rate > 0),
    matched    INTEGER NOT NULL,
    released   INTEGER NOT NULL DEFAULT 0,
    cursor     INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    finished   INTEGER NOT NULL DEFAULT 0 CHECK (finished IN (0, 1))
) STRICT;

-- What changed, one row a batch, for those who watch.
CREATE TABLE events (
    batch INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    facts BLOB NOT NULL
) STRICT;

CREATE VIEW tasks AS
SELECT lower(substr(hex(b.id), 1, 8) || '-' || substr(hex(b.id), 9, 4) || '-' || substr(hex(b.id), 13, 4) || '-'
             || substr(hex(b.id), 17, 4) || '-' || substr(hex(b.id), 21)) AS task_id,
       q.name AS queue, b.operator, b.tenant, b.workspace, b.priority,
       CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
            WHEN s.seq IS NOT NULL THEN 'Scheduled'
            ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' ELSE 'Canceled' END END AS state,
       coalesce(u.attempt, r.attempt, s.attempt, f.attempt) AS attempt,
       coalesce(u.fence, r.fence, s.fence, f.fence) AS fence,
       coalesce(u.worker_id, f.worker_id) AS worker_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', coalesce(s.at, r.at) / 1000.0, 'unixepoch') AS waiting_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', u.expires_at / 1000.0, 'unixepoch') AS lease_expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.finished_at / 1000.0, 'unixepoch') AS finished_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', f.dead_lettered_at / 1000.0, 'unixepoch') AS dead_lettered_at,
       f.reason, f.error_code, f.cancel_reason, b.payload, f.result, f.failure, b.seq
FROM bodies b JOIN queues q USING (queue_id)
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
