CREATE TABLE meta (
    only_row    int PRIMARY KEY CHECK (only_row = 1),
    next_number bigint NOT NULL,
    alive_at    timestamptz NOT NULL,
    grace_until timestamptz NOT NULL
);
INSERT INTO meta VALUES (1, 1, 'epoch', 'epoch');

CREATE TABLE queues (
    queue_id       int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name           text COLLATE "C" NOT NULL UNIQUE,
    paused         boolean NOT NULL DEFAULT false,
    max_running    int CHECK (max_running >= 0),
    rate           double precision CHECK (rate > 0),
    burst          double precision CHECK (burst >= 1),
    fairness_key   text,
    lease_ttl_ms   bigint CHECK (lease_ttl_ms > 0),
    heartbeat_ms   bigint CHECK (heartbeat_ms > 0),
    no_dead_letter boolean NOT NULL DEFAULT false,
    bucket_tokens  double precision,
    bucket_at      timestamptz,
    fair_cursor    text COLLATE "C",
    CHECK ((rate IS NULL) = (burst IS NULL)),
    CHECK ((bucket_tokens IS NULL) = (bucket_at IS NULL))
);

-- How many rows each queue has per place: changed with the rows, so that nobody has to count them. Each connection has
-- a row of its own per queue, so that commits do not wait for each other; one row alone may be negative, the sum is not.
CREATE TABLE queue_counts (
    queue_id      int NOT NULL,
    shard         int NOT NULL,
    scheduled     bigint NOT NULL DEFAULT 0,
    ready         bigint NOT NULL DEFAULT 0,
    running       bigint NOT NULL DEFAULT 0,
    finished      bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_id, shard)
) WITH (fillfactor = 50);

CREATE TABLE queue_seen (
    queue_id int PRIMARY KEY,
    seen_at  timestamptz NOT NULL
);

CREATE TABLE workers (
    worker_id   text PRIMARY KEY,
    incarnation text COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL
);

-- What was submitted: written once.
CREATE TABLE bodies (
    seq             bigint PRIMARY KEY,
    id              uuid NOT NULL,
    queue_id        int NOT NULL,
    operator        text NOT NULL,
    tenant          text NOT NULL,
    workspace       text NOT NULL,
    priority        smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    payload         text NOT NULL,
    spec            text,
    tags            text,
    idempotency_key text,
    fingerprint     bytea CHECK (length(fingerprint) = 32),
    traceparent     text,
    created_at      timestamptz NOT NULL,
    run_at          timestamptz NOT NULL,
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
);
CREATE UNIQUE INDEX bodies_by_key ON bodies (tenant, workspace, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Due later.
CREATE TABLE scheduled (
    seq      bigint PRIMARY KEY,
    id       uuid NOT NULL,
    queue_id int NOT NULL,
    priority smallint NOT NULL,
    at       timestamptz NOT NULL,
    fair     text COLLATE "C",
    message  bigint NOT NULL,
    attempt  int NOT NULL CHECK (attempt >= 0),
    fence    bigint NOT NULL CHECK (fence >= 0),
    deadline timestamptz,
    carry    text
);
CREATE INDEX scheduled_by_time ON scheduled (at);
CREATE INDEX scheduled_by_deadline ON scheduled (deadline) WHERE deadline IS NOT NULL;

-- May be granted now.
CREATE TABLE ready (
    seq      bigint PRIMARY KEY,
    id       uuid NOT NULL,
    queue_id int NOT NULL,
    priority smallint NOT NULL,
    at       timestamptz NOT NULL,
    fair     text COLLATE "C",
    message  bigint NOT NULL,
    attempt  int NOT NULL CHECK (attempt >= 0),
    fence    bigint NOT NULL CHECK (fence >= 0),
    deadline timestamptz,
    carry    text
) WITH (
    -- Every grant leaves a dead row at the head of the order.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX ready_in_order ON ready (queue_id, priority, at, seq);
CREATE INDEX ready_by_fairness ON ready (queue_id, fair, priority, at, seq) WHERE fair IS NOT NULL;
CREATE INDEX ready_by_deadline ON ready (deadline) WHERE deadline IS NOT NULL;

-- Held: the lease itself.
CREATE TABLE running (
    seq                 bigint PRIMARY KEY,
    id                  uuid NOT NULL,
    queue_id            int NOT NULL,
    priority            smallint NOT NULL,
    fair                text COLLATE "C",
    message             bigint NOT NULL,
    worker_id           text NOT NULL,
    token               uuid NOT NULL,
    fence               bigint NOT NULL CHECK (fence >= 1),
    expires_at          timestamptz NOT NULL,
    attempt             int NOT NULL CHECK (attempt >= 1),
    attempt_id          uuid NOT NULL,
    claim_id            text,
    incarnation         text COLLATE "C",
    granted_at          timestamptz NOT NULL,
    last_heartbeat_at   timestamptz,
    progress_pct        smallint CHECK (progress_pct BETWEEN 0 AND 100),
    progress_message    text,
    lease_ttl_ms        bigint NOT NULL,
    heartbeat_ms        bigint NOT NULL,
    cancel_reason       text,
    cancel_requested_at timestamptz,
    cancel_signaled_at  timestamptz,
    carry               text,
    CHECK ((cancel_reason IS NULL) = (cancel_requested_at IS NULL)),
    CHECK (cancel_signaled_at IS NULL OR cancel_requested_at IS NOT NULL)
) WITH (
    -- Heartbeats rewrite these rows in place: room on the page and no index on what they change keep that cheap.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX running_by_queue ON running (queue_id);
CREATE INDEX running_by_claim ON running (worker_id, claim_id) WHERE claim_id IS NOT NULL;

-- Ended. `ended` is 1 succeeded, 2 failed, 3 canceled. The columns from `attempt_id` on are the final attempt.
CREATE TABLE finished (
    seq               bigint PRIMARY KEY,
    queue_id          int NOT NULL,
    ended             smallint NOT NULL CHECK (ended IN (1, 2, 3)),
    finished_at       timestamptz NOT NULL,
    result            text,
    failure           text,
    error_code        text,
    reason            text,
    dead_lettered_at  timestamptz,
    cancel_reason     text,
    attempt           int NOT NULL CHECK (attempt >= 0),
    fence             bigint NOT NULL CHECK (fence >= 0),
    attempt_id        uuid,
    token             uuid,
    worker_id         text,
    granted_at        timestamptz,
    last_heartbeat_at timestamptz,
    ended_at          timestamptz,
    attempt_state     smallint,
    attempt_reason    smallint,
    receipt           smallint,
    more              text,
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND attempt_id IS NOT NULL)),
    CHECK (ended = 1 OR result IS NULL),
    CHECK (ended = 2 OR (reason IS NULL AND dead_lettered_at IS NULL)),
    CHECK ((ended = 3) = (cancel_reason IS NOT NULL)),
    CHECK (attempt > 0 OR attempt_id IS NULL)
);
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

-- Ended attempts that others followed, or will.
CREATE TABLE attempts (
    seq               bigint NOT NULL,
    attempt           int NOT NULL CHECK (attempt >= 1),
    attempt_id        uuid NOT NULL,
    token             uuid NOT NULL,
    fence             bigint NOT NULL,
    worker_id         text NOT NULL,
    granted_at        timestamptz NOT NULL,
    last_heartbeat_at timestamptz,
    ended_at          timestamptz NOT NULL,
    attempt_state     smallint NOT NULL,
    attempt_reason    smallint NOT NULL,
    failure           text,
    progress_pct      smallint,
    progress_message  text,
    receipt           smallint,
    evidence          text,
    PRIMARY KEY (seq, attempt)
);

CREATE TABLE redrives (
    redrive_id uuid PRIMARY KEY,
    key        text UNIQUE,
    filter     text NOT NULL,
    rate       double precision CHECK (rate > 0),
    matched    bigint NOT NULL,
    released   bigint NOT NULL DEFAULT 0,
    cursor     bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL,
    finished   boolean NOT NULL DEFAULT false
);

-- What changed, one row a batch, for those who watch.
CREATE TABLE events (
    batch bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at    timestamptz NOT NULL,
    facts bytea NOT NULL
);

CREATE VIEW tasks AS
SELECT b.id AS task_id,
       q.name AS queue, b.operator, b.tenant, b.workspace, b.priority,
       CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
            WHEN s.seq IS NOT NULL THEN 'Scheduled'
            ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' ELSE 'Canceled' END END AS state,
       coalesce(u.attempt, r.attempt, s.attempt, f.attempt) AS attempt,
       coalesce(u.fence, r.fence, s.fence, f.fence) AS fence,
       coalesce(u.worker_id, f.worker_id) AS worker_id,
       b.created_at AS created_at,
       coalesce(s.at, r.at) AS waiting_at,
       u.expires_at AS lease_expires_at,
       f.finished_at AS finished_at,
       f.dead_lettered_at AS dead_lettered_at,
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
