-- Times are milliseconds since 1970-01-01T00:00:00Z, ids are 16 bytes. The view `tasks` shows both in words.

CREATE TABLE meta (
    only_row     INTEGER PRIMARY KEY CHECK (only_row = 1),
    next_number  INTEGER NOT NULL,
    alive_at     INTEGER NOT NULL,
    grace_until  INTEGER NOT NULL,
    gap_ended_at INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 1, 0, 0, 0);

-- Numbers of queues are not used again: ended tasks keep that of their queue.
CREATE TABLE queues (
    queue_id       INTEGER PRIMARY KEY AUTOINCREMENT,
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
    -- The tenant that owns the queue; NULL is shared by all tenants.
    tenant         TEXT,
    -- How wake-ups of the queue are sent; NULL is embedded.
    transport      TEXT CHECK (transport IN ('redis', 'sqs')),
    -- Where tasks of the queue are pushed, as JSON; NULL is a queue that workers claim from.
    push           TEXT,
    strict         INTEGER NOT NULL DEFAULT 0 CHECK (strict IN (0, 1)),
    -- Set for the queue of a job, as JSON.
    dispatch       TEXT,
    CHECK ((rate IS NULL) = (burst IS NULL)),
    CHECK ((bucket_tokens IS NULL) = (bucket_at IS NULL))
) STRICT;
CREATE INDEX queues_by_push ON queues (queue_id) WHERE push IS NOT NULL;
CREATE INDEX queues_of_jobs ON queues (queue_id) WHERE dispatch IS NOT NULL;

-- Number of rows of each queue in each place, changed with the rows.
CREATE TABLE queue_counts (
    queue_id      INTEGER PRIMARY KEY,
    blocked       INTEGER NOT NULL DEFAULT 0 CHECK (blocked >= 0),
    scheduled     INTEGER NOT NULL DEFAULT 0 CHECK (scheduled >= 0),
    ready         INTEGER NOT NULL DEFAULT 0 CHECK (ready >= 0),
    running       INTEGER NOT NULL DEFAULT 0 CHECK (running >= 0),
    finished      INTEGER NOT NULL DEFAULT 0 CHECK (finished >= 0),
    dead_lettered INTEGER NOT NULL DEFAULT 0 CHECK (dead_lettered >= 0)
) STRICT;

-- Names of deleted queues that still have ended tasks, and how many.
CREATE TABLE deleted_queues (
    queue_id INTEGER PRIMARY KEY,
    name     TEXT NOT NULL,
    finished INTEGER NOT NULL
) STRICT;

CREATE VIEW queue_names AS
SELECT queue_id, name FROM queues UNION ALL SELECT queue_id, name FROM deleted_queues;

-- When a worker last claimed from a queue.
CREATE TABLE queue_seen (
    queue_id INTEGER PRIMARY KEY,
    seen_at  INTEGER NOT NULL
) STRICT;

CREATE TABLE workers (
    worker_id   TEXT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    seen_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers that claim tasks, as control planes have seen them. Lists and `details` are JSON. Nothing is decided by them
-- but who gets no new work: `drained_at`.
CREATE TABLE worker_records (
    worker_id     TEXT PRIMARY KEY,
    contracts     TEXT NOT NULL,
    queues        TEXT NOT NULL,
    details       TEXT NOT NULL,
    first_seen_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL,
    drained_at    INTEGER,
    drain_reason  TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX worker_records_by_seen ON worker_records (seen_at);
CREATE INDEX worker_records_drained ON worker_records (worker_id) WHERE drained_at IS NOT NULL;

-- Tasks as they were submitted.
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
    -- The user who submitted the task, inside its tenant.
    owner           TEXT,
    -- The run that the task was submitted in, and its name there.
    run_id          BLOB,
    task_key        TEXT,
    -- The credential that the task was submitted with.
    submitted_by    TEXT,
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
) STRICT;
CREATE UNIQUE INDEX bodies_by_key ON bodies (tenant, workspace, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Tasks of runs that wait for other tasks.
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

-- Tasks that are due later.
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

-- Tasks that may be granted now.
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

-- Tasks held under a lease.
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
    -- For pushed attempts: when to push again, number of pushes, and when the worker started. NULL if claimed.
    push_at             INTEGER,
    deliveries          INTEGER,
    started_at          INTEGER,
    CHECK ((cancel_reason IS NULL) = (cancel_requested_at IS NULL)),
    CHECK (cancel_signaled_at IS NULL OR cancel_requested_at IS NOT NULL)
) STRICT;
CREATE INDEX running_by_claim ON running (worker_id, claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX running_by_push ON running (queue_id, push_at) WHERE push_at IS NOT NULL;

-- Ended tasks. `ended` is 1 succeeded, 2 failed, 3 canceled, 4 skipped. The columns from `attempt_id` on are the final
-- attempt; a result that was reused from another run has none. `failure` is JSON without the stack.
CREATE TABLE finished (
    seq               INTEGER PRIMARY KEY,
    queue_id          INTEGER NOT NULL,
    ended             INTEGER NOT NULL CHECK (ended BETWEEN 1 AND 4),
    finished_at       INTEGER NOT NULL,
    result            TEXT,
    failure           TEXT,
    stack             TEXT,
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
    -- For pushed attempts: number of pushes, and when the worker started. NULL if claimed.
    deliveries        INTEGER,
    started_at        INTEGER,
    more              TEXT,
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND (attempt_id IS NOT NULL OR attempt = 0))),
    CHECK (ended = 1 OR result IS NULL),
    CHECK (ended = 2 OR (reason IS NULL AND dead_lettered_at IS NULL)),
    CHECK (ended <> 3 OR cancel_reason IS NOT NULL),
    CHECK (attempt > 0 OR attempt_id IS NULL)
) STRICT;
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

-- Ended attempts before the last one.
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
    -- What the attempt used, as JSON.
    metrics           TEXT,
    -- What only attempts of callback workers have, as JSON.
    callback          TEXT,
    -- When the retry was due that its holder was told of.
    retry_at          INTEGER,
    PRIMARY KEY (seq, attempt)
) STRICT, WITHOUT ROWID;

-- What attempts print and log, in pieces as their workers sent them. `lines` is JSON. Any of it may be dropped at any time.
CREATE TABLE task_logs (
    piece   INTEGER PRIMARY KEY AUTOINCREMENT,
    seq     INTEGER NOT NULL,
    attempt INTEGER NOT NULL CHECK (attempt >= 1),
    at      INTEGER NOT NULL,
    bytes   INTEGER NOT NULL,
    lines   TEXT NOT NULL
) STRICT;
CREATE INDEX task_logs_by_task ON task_logs (seq, attempt, bytes);
CREATE INDEX task_logs_by_age ON task_logs (at);

CREATE TABLE redrives (
    redrive_id BLOB PRIMARY KEY CHECK (length(redrive_id) = 16),
    key        TEXT UNIQUE,
    filter     TEXT NOT NULL,
    rate       REAL CHECK (rate > 0),
    matched    INTEGER NOT NULL,
    released   INTEGER NOT NULL DEFAULT 0,
    cursor     INTEGER NOT NULL DEFAULT 0,
    started_at INTEGER NOT NULL,
    finished   INTEGER NOT NULL DEFAULT 0 CHECK (finished IN (0, 1)),
    paused     INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    canceled   INTEGER NOT NULL DEFAULT 0 CHECK (canceled IN (0, 1)),
    CHECK (finished = 1 OR canceled = 0)
) STRICT;
CREATE INDEX redrives_by_start ON redrives (started_at, redrive_id);

-- What changed, one row per batch, for watchers.
CREATE TABLE events (
    batch INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    facts BLOB NOT NULL
) STRICT;

-- Runs: tasks that depend on each other, and how many of them ended in which way.
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
    -- 1 running, 2 cancelling, 3 succeeded, 4 failed, 5 cancelled: follows from the counts, for lists.
    state         INTEGER NOT NULL CHECK (state BETWEEN 1 AND 5),
    CHECK ((open = 0) = (finished_at IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, workspace, run_key) WHERE run_key IS NOT NULL;
CREATE INDEX runs_by_end ON runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_by_tenant ON runs (tenant, seq);

-- The tasks of a run. `depends_on` is the list of numbers that each was submitted to wait for.
CREATE TABLE run_tasks (
    task       INTEGER PRIMARY KEY,
    run        INTEGER NOT NULL,
    depends_on TEXT
) STRICT;
CREATE INDEX run_tasks_by_run ON run_tasks (run, task);

-- Dependencies that are not resolved yet: a row is removed when the upstream task ends.
CREATE TABLE run_edges (
    upstream   INTEGER NOT NULL,
    downstream INTEGER NOT NULL,
    PRIMARY KEY (upstream, downstream)
) STRICT, WITHOUT ROWID;

-- Effects to perform outside the store, written with the change that causes them. `due_at` is when a row may be taken.
-- Taking it moves `due_at` on, so a crash delays a row and loses none. The row goes when the effect was performed. A
-- wake-up (`enqueue_task`) keeps its row while it is live: until its task ends or is enqueued again.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY,
    kind         TEXT NOT NULL,
    -- Where the effect goes: for wake-ups the transport.
    key          TEXT NOT NULL,
    body         TEXT NOT NULL,
    queue_id     INTEGER,
    seq          INTEGER,
    created_at   INTEGER NOT NULL,
    due_at       INTEGER,
    tries        INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    failed_at    INTEGER,
    published_at INTEGER,
    receipt      TEXT,
    -- Waiting, published, or failed for good.
    CHECK ((due_at IS NOT NULL) + (published_at IS NOT NULL) + (failed_at IS NOT NULL) = 1),
    CHECK ((published_at IS NULL) = (receipt IS NULL))
) STRICT;
CREATE INDEX outbox_due ON outbox (kind, key, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_failed ON outbox (kind, key, id) WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_by_queue ON outbox (queue_id, id);

-- Leases on resources other than tasks. A released row stays as a tombstone: the generation of a resource only grows.
CREATE TABLE leases (
    resource_type TEXT NOT NULL CHECK (resource_type IN ('system', 'replica', 'sandbox')),
    resource_id   TEXT NOT NULL,
    holder_id     TEXT NOT NULL,
    token         BLOB NOT NULL CHECK (length(token) = 16),
    generation    INTEGER NOT NULL CHECK (generation >= 1),
    acquired_at   INTEGER NOT NULL,
    renewed_at    INTEGER NOT NULL,
    expires_at    INTEGER NOT NULL,
    released_at   INTEGER,
    PRIMARY KEY (resource_type, resource_id)
) STRICT, WITHOUT ROWID;

-- API keys, by hash.
CREATE TABLE api_keys (
    key_id     TEXT PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    name       TEXT NOT NULL,
    role       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    owner      TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

-- Worker tokens that are rejected until they expire.
CREATE TABLE worker_revocations (
    token_id   TEXT PRIMARY KEY,
    until      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers that have shown a credential of their own: a shared token cannot speak for them.
CREATE TABLE proven_workers (
    worker_id TEXT PRIMARY KEY,
    until     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX proven_workers_by_end ON proven_workers (until);

-- Public keys that verify task tokens.
CREATE TABLE task_keys (
    kid           TEXT PRIMARY KEY,
    jwk           TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Secrets that control planes share if their configuration has none.
CREATE TABLE shared_secrets (
    name       TEXT PRIMARY KEY,
    secret     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Requests to admin endpoints.
CREATE TABLE admin_audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    at          INTEGER NOT NULL,
    actor       TEXT NOT NULL,
    method      TEXT NOT NULL,
    path        TEXT NOT NULL,
    status      INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    request_id  TEXT NOT NULL,
    remote_addr TEXT NOT NULL,
    user_agent  TEXT,
    tenant      TEXT
) STRICT;

-- Operations on resources.
CREATE TABLE operation_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    action     TEXT NOT NULL,
    -- The sandbox that it was about, and the provider of that sandbox.
    sandbox    TEXT,
    provider   TEXT,
    resource   TEXT NOT NULL,
    status     TEXT NOT NULL,
    detail     TEXT,
    tenant     TEXT,
    request_id TEXT
) STRICT;

-- Queries that were answered. Their text is not kept.
CREATE TABLE query_audit (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    query_id  TEXT NOT NULL,
    org       TEXT NOT NULL,
    -- The user, or the attempt of a task.
    actor     TEXT,
    task      TEXT,
    attempt   INTEGER,
    -- Lists in JSON.
    datasets  TEXT NOT NULL,
    columns   TEXT NOT NULL,
    row_count INTEGER NOT NULL,
    sql_hash  TEXT NOT NULL,
    -- The file of a result that was exported.
    export    TEXT,
    CHECK ((actor IS NULL) = (task IS NOT NULL))
) STRICT;
CREATE UNIQUE INDEX query_audit_query ON query_audit (query_id);

-- Temporary keys for the object store, without their secrets. `scope` is JSON.
CREATE TABLE credential_grants (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    at            INTEGER NOT NULL,
    org           TEXT NOT NULL,
    task_id       BLOB NOT NULL CHECK (length(task_id) = 16),
    attempt       INTEGER NOT NULL CHECK (attempt > 0),
    backend       TEXT NOT NULL CHECK (backend IN ('embedded', 'sts')),
    access_key_id TEXT NOT NULL,
    purpose       TEXT NOT NULL,
    scope         TEXT NOT NULL,
    expires_at    INTEGER NOT NULL,
    request_id    TEXT NOT NULL
) STRICT;
CREATE INDEX credential_grants_by_task ON credential_grants (task_id);

CREATE TABLE tenant_limits (
    tenant     TEXT PRIMARY KEY,
    limits     TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What is said about tenants. A tenant needs no row to be used. `settings` is JSON that belongs to clients.
CREATE TABLE tenants (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    owner      TEXT,
    settings   TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tenant_members (
    tenant     TEXT NOT NULL,
    user_id    TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, user_id)
) STRICT, WITHOUT ROWID;

-- Locked by whoever places a sandbox or hands out a warm one, so that control planes never exceed a cap together.
CREATE TABLE sandbox_gate (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1)
) STRICT;
INSERT INTO sandbox_gate VALUES (1);

-- Sandboxes. `spec` is JSON; what is searched or summed has columns. A row without a worker waits for room and reserves
-- nothing. `refused_by` is JSON.
CREATE TABLE sandboxes (
    id             TEXT PRIMARY KEY,
    tenant         TEXT NOT NULL,
    owner          TEXT,
    state          TEXT NOT NULL CHECK
        (state IN ('creating', 'running', 'idle', 'unhealthy', 'error', 'expired', 'destroyed')),
    reason         TEXT,
    provider       TEXT NOT NULL,
    memory_mb      INTEGER NOT NULL CHECK (memory_mb >= 0),
    vcpus          INTEGER NOT NULL CHECK (vcpus >= 0),
    spec           TEXT NOT NULL,
    worker_id      TEXT,
    runtime_id     TEXT,
    request_id     TEXT NOT NULL,
    -- The template of a warm sandbox that nobody has claimed.
    pool           TEXT,
    created_at     INTEGER NOT NULL,
    changed_at     INTEGER NOT NULL,
    expires_at     INTEGER NOT NULL,
    spawn_deadline INTEGER NOT NULL,
    refused_by     TEXT,
    CHECK (state NOT IN ('running', 'idle') OR (worker_id IS NOT NULL AND runtime_id IS NOT NULL)),
    CHECK (state <> 'idle' OR pool IS NOT NULL)
) STRICT;
-- Rows that take room on a worker and count against caps. Statements repeat the condition, so that they use the index.
CREATE INDEX sandboxes_placed ON sandboxes (worker_id, memory_mb, vcpus, id)
    WHERE worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy');
CREATE INDEX sandboxes_counted ON sandboxes (tenant, owner, pool)
    WHERE worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy');
-- No list reads destroyed rows.
CREATE INDEX sandboxes_by_time ON sandboxes (created_at, id) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant, created_at, id) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_by_owner ON sandboxes (tenant, owner, created_at, id)
    WHERE state <> 'destroyed' AND owner IS NOT NULL;
CREATE INDEX sandboxes_by_worker ON sandboxes (worker_id, created_at, id)
    WHERE state <> 'destroyed' AND worker_id IS NOT NULL;
CREATE INDEX sandboxes_by_end ON sandboxes (state, expires_at) WHERE state <> 'destroyed';
CREATE INDEX sandboxes_warm ON sandboxes (pool, created_at, id) WHERE pool IS NOT NULL AND state IN ('creating', 'idle');
CREATE INDEX sandboxes_destroyed ON sandboxes (changed_at) WHERE state = 'destroyed';

-- Workers that hold sandboxes, as of their last heartbeat. Lists and the capacity are JSON. `inventory` is everything the
-- worker holds, `held` the ids of those sandboxes: placement reads only these.
CREATE TABLE sandbox_workers (
    worker_id      TEXT PRIMARY KEY,
    hostname       TEXT NOT NULL,
    status         TEXT NOT NULL,
    providers      TEXT NOT NULL,
    capabilities   TEXT NOT NULL,
    capacity       TEXT NOT NULL,
    boot_id        TEXT NOT NULL,
    seq            INTEGER NOT NULL CHECK (seq >= 0),
    inventory      TEXT NOT NULL,
    held           TEXT NOT NULL,
    desired_status TEXT CHECK (desired_status IN ('online', 'draining')),
    drain_reason   TEXT,
    last_heartbeat INTEGER NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    barred         INTEGER NOT NULL DEFAULT 0 CHECK (barred IN (0, 1))
) STRICT;

-- Sandboxes that wait for room, in order of `seq` within a provider. The caps are those of the last try.
CREATE TABLE spawn_queue (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox_id TEXT NOT NULL UNIQUE,
    provider   TEXT NOT NULL,
    deadline   INTEGER NOT NULL,
    per_owner  INTEGER NOT NULL CHECK (per_owner >= 0),
    per_tenant INTEGER NOT NULL CHECK (per_tenant >= 0)
) STRICT;
CREATE INDEX spawn_queue_by_provider ON spawn_queue (provider, seq);

-- Idempotency keys of creates. `owner` is empty for callers without one.
CREATE TABLE sandbox_keys (
    tenant      TEXT NOT NULL,
    owner       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32),
    sandbox_id  TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_keys_by_age ON sandbox_keys (created_at);

CREATE TABLE sandbox_templates (
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL CHECK (version >= 1),
    body       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE sandbox_quotas (
    tenant              TEXT NOT NULL,
    owner               TEXT NOT NULL,
    max_sandboxes       INTEGER NOT NULL CHECK (max_sandboxes >= 0),
    max_ttl_ms          INTEGER NOT NULL CHECK (max_ttl_ms >= 0),
    max_exec_timeout_ms INTEGER NOT NULL CHECK (max_exec_timeout_ms >= 0),
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    PRIMARY KEY (tenant, owner)
) STRICT, WITHOUT ROWID;

-- Rules about what may be spawned. One without a tenant applies to all.
CREATE TABLE sandbox_policies (
    id            TEXT PRIMARY KEY,
    tenant        TEXT,
    resource_type TEXT NOT NULL,
    effect        TEXT NOT NULL,
    pattern       TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    created_at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sandbox_policies_by_tenant ON sandbox_policies (tenant);

-- Snapshots whose archives are stored whole.
CREATE TABLE sandbox_snapshots (
    id         TEXT PRIMARY KEY,
    tenant     TEXT NOT NULL,
    owner      TEXT,
    name       TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    image      TEXT NOT NULL,
    provider   TEXT NOT NULL,
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    sha256     TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX sandbox_snapshots_by_tenant ON sandbox_snapshots (tenant, created_at, id);
CREATE INDEX sandbox_snapshots_by_sandbox ON sandbox_snapshots (sandbox_id, created_at, id);

-- Archives of snapshots in pieces. Those of an upload that was given up are found by their first piece.
CREATE TABLE snapshot_pieces (
    snapshot_id TEXT NOT NULL,
    piece       INTEGER NOT NULL CHECK (piece >= 0),
    bytes       BLOB NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (snapshot_id, piece)
) STRICT;
CREATE INDEX snapshot_pieces_first ON snapshot_pieces (created_at) WHERE piece = 0;

-- What happened to sandboxes and workers, for those who watch. Without a tenant it is for operators only.
CREATE TABLE sandbox_events (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    sandbox_id TEXT,
    tenant     TEXT,
    owner      TEXT,
    data       TEXT
) STRICT;

-- Tasks and runs that are submitted again and again.
CREATE TABLE schedules (
    id         TEXT NOT NULL PRIMARY KEY,
    tenant     TEXT NOT NULL,
    name       TEXT NOT NULL,
    owner      TEXT,
    maker      TEXT,
    kind       TEXT NOT NULL CHECK (kind IN ('task', 'run')),
    definition TEXT NOT NULL,
    template   TEXT NOT NULL,
    state      TEXT NOT NULL,
    paused     INTEGER NOT NULL CHECK (paused IN (0, 1)),
    due_at     INTEGER,
    version    INTEGER NOT NULL CHECK (version >= 1),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    UNIQUE (tenant, name)
) STRICT;
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

-- What is deployed, one document per organisation. `seq` grows with every change of it.
CREATE TABLE deployments (
    org        TEXT PRIMARY KEY,
    seq        INTEGER NOT NULL CHECK (seq >= 1),
    document   TEXT NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dag_versions (
    version_id BLOB PRIMARY KEY CHECK (length(version_id) = 16),
    org        TEXT NOT NULL,
    dag        TEXT NOT NULL,
    number     INTEGER NOT NULL,
    yaml       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

-- Jobs of DAGs. Each has a queue of its own.
CREATE TABLE dag_jobs (
    job_id     INTEGER PRIMARY KEY,
    org        TEXT NOT NULL,
    dag        TEXT NOT NULL,
    name       TEXT NOT NULL,
    definition TEXT NOT NULL,
    queue_id   INTEGER NOT NULL
) STRICT;
CREATE INDEX dag_jobs_by_org ON dag_jobs (org, job_id);

-- The next slot of each cron source, by the job's name: it outlives versions of the DAG.
CREATE TABLE cron_slots (
    org      TEXT NOT NULL,
    dag      TEXT NOT NULL,
    job      TEXT NOT NULL,
    -- What the slot follows from. Another schedule begins anew.
    schedule TEXT NOT NULL,
    next_ms  INTEGER NOT NULL,
    PRIMARY KEY (org, dag, job)
) STRICT, WITHOUT ROWID;

-- Who owns a path of a webhook. A path leads to one DAG, whatever the organisation.
CREATE TABLE webhook_paths (
    path TEXT PRIMARY KEY,
    org  TEXT NOT NULL,
    dag  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_paths_by_org ON webhook_paths (org, path);

-- Signed deliveries of webhooks, each with the name that it first came with. They are known for longer than a signature is
-- valid, so that a delivery sent again under another name is recognised.
CREATE TABLE webhook_signatures (
    digest      BLOB PRIMARY KEY CHECK (length(digest) = 32),
    delivery_id TEXT NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_signatures_by_time ON webhook_signatures (expires_at);

-- Generations of datasets. `generation` counts the invalidations that cover all of it; `cursor` is the highest one produced.
CREATE TABLE dataset_generations (
    version_id BLOB PRIMARY KEY CHECK (length(version_id) = 16),
    dataset_id BLOB NOT NULL CHECK (length(dataset_id) = 16),
    org        TEXT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    cursor     INTEGER,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX dataset_generations_by_org ON dataset_generations (org, version_id);

-- Who wrote what. An event without `routed_at` has yet to be routed; `unrouted` says why one was not.
CREATE TABLE dataset_events (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    org           TEXT NOT NULL,
    dataset_id    BLOB NOT NULL CHECK (length(dataset_id) = 16),
    version_id    BLOB NOT NULL CHECK (length(version_id) = 16),
    position      TEXT NOT NULL,
    generation    INTEGER NOT NULL,
    cursor        INTEGER,
    partition_key TEXT,
    range_start   INTEGER,
    range_end     INTEGER,
    producer      BLOB CHECK (length(producer) = 16),
    attempt       INTEGER,
    recorded_at   INTEGER NOT NULL,
    routed_at     INTEGER,
    unrouted      TEXT,
    CHECK ((cursor IS NULL) <> (partition_key IS NULL)),
    CHECK ((range_start IS NULL) = (range_end IS NULL)),
    CHECK ((producer IS NULL) = (attempt IS NULL))
) STRICT;
CREATE UNIQUE INDEX dataset_events_by_position ON dataset_events (version_id, position, generation);
CREATE INDEX dataset_events_unrouted ON dataset_events (id) WHERE routed_at IS NULL;

-- Batches of rows for buffered datasets. Each waits, is done, or is a dead letter. A batch that is done has no body.
CREATE TABLE buffer_publishes (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    publish_id BLOB NOT NULL UNIQUE,
    org        TEXT NOT NULL,
    dataset_id BLOB NOT NULL,
    digest     TEXT NOT NULL,
    body       TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    due_at     INTEGER,
    receives   INTEGER NOT NULL DEFAULT 0,
    error      TEXT,
    done_at    INTEGER,
    dead_at    INTEGER,
    CHECK ((due_at IS NOT NULL) + (done_at IS NOT NULL) + (dead_at IS NOT NULL) = 1)
);
CREATE INDEX buffer_publishes_waiting ON buffer_publishes (dataset_id, number) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_due ON buffer_publishes (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_of_org ON buffer_publishes (org, bytes) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_dead ON buffer_publishes (dataset_id, number) WHERE dead_at IS NOT NULL;
CREATE INDEX buffer_publishes_dead_at ON buffer_publishes (dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX buffer_publishes_done_at ON buffer_publishes (done_at) WHERE done_at IS NOT NULL;

-- Bundles of code that jobs run. Their bytes are in the object store.
CREATE TABLE udf_bundles (
    bundle_id  BLOB PRIMARY KEY CHECK (length(bundle_id) = 16),
    org        TEXT NOT NULL,
    sha256     TEXT NOT NULL CHECK (length(sha256) = 64),
    manifest   TEXT NOT NULL,
    bytes      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (org, sha256)
) STRICT, WITHOUT ROWID;

-- Partitions of generations. One without a location was invalidated before anything was committed to it.
CREATE TABLE dataset_partitions (
    version_id      BLOB NOT NULL CHECK (length(version_id) = 16),
    key             TEXT NOT NULL,
    range_start     INTEGER,
    range_end       INTEGER,
    generation      INTEGER NOT NULL,
    location        TEXT,
    row_count       INTEGER,
    bytes           INTEGER,
    schema_hash     TEXT,
    manifest        TEXT,
    artifact        BLOB CHECK (length(artifact) = 16),
    materialized_at INTEGER,
    producer        BLOB CHECK (length(producer) = 16),
    attempt         INTEGER,
    PRIMARY KEY (version_id, key),
    CHECK ((range_start IS NULL) = (range_end IS NULL)),
    CHECK ((location IS NULL) = (materialized_at IS NULL)),
    CHECK ((producer IS NULL) = (attempt IS NULL))
) STRICT, WITHOUT ROWID;

-- Names that workers gave what they published. A name stands for one content.
CREATE TABLE dataset_artifacts (
    dataset_id BLOB NOT NULL CHECK (length(dataset_id) = 16),
    artifact   BLOB NOT NULL CHECK (length(artifact) = 16),
    version_id BLOB NOT NULL CHECK (length(version_id) = 16),
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    PRIMARY KEY (dataset_id, artifact)
) STRICT, WITHOUT ROWID;
CREATE INDEX dataset_artifacts_by_version ON dataset_artifacts (version_id);

-- How far jobs have read generations by cursor.
CREATE TABLE edge_cursors (
    job_id     INTEGER NOT NULL,
    version_id BLOB NOT NULL CHECK (length(version_id) = 16),
    value      INTEGER NOT NULL,
    PRIMARY KEY (job_id, version_id)
) STRICT, WITHOUT ROWID;

-- Partitions that jobs have read, and at which generation.
CREATE TABLE edge_partitions (
    job_id     INTEGER NOT NULL,
    version_id BLOB NOT NULL CHECK (length(version_id) = 16),
    key        TEXT NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (job_id, version_id, key)
) STRICT, WITHOUT ROWID;

-- Data that has changed. `generation` is NULL only inside the transaction that applies the invalidation. `dependents` is
-- NULL until its tasks were made.
CREATE TABLE data_invalidations (
    invalidation_id BLOB PRIMARY KEY CHECK (length(invalidation_id) = 16),
    org             TEXT NOT NULL,
    dataset_id      BLOB NOT NULL CHECK (length(dataset_id) = 16),
    version_id      BLOB NOT NULL CHECK (length(version_id) = 16),
    partition_key   TEXT,
    row_filter      TEXT,
    reason          TEXT NOT NULL,
    generation      INTEGER,
    created_at      INTEGER NOT NULL,
    dependents      INTEGER,
    CHECK ((partition_key IS NULL) <> (row_filter IS NULL))
) STRICT;
CREATE INDEX data_invalidations_open ON data_invalidations (created_at, invalidation_id) WHERE dependents IS NULL;
CREATE INDEX data_invalidations_by_version ON data_invalidations (version_id);

-- Jobs that an invalidation makes run again. A row without `done_at` is a task that has yet to succeed.
CREATE TABLE invalidation_dependents (
    invalidation_id BLOB NOT NULL CHECK (length(invalidation_id) = 16),
    job_id          INTEGER NOT NULL,
    done_at         INTEGER,
    PRIMARY KEY (invalidation_id, job_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX invalidation_dependents_by_job ON invalidation_dependents (job_id);

-- What jobs keep from one task to the next.
CREATE TABLE operator_state (
    job_id     INTEGER PRIMARY KEY,
    state      TEXT NOT NULL,
    changed_at INTEGER NOT NULL
) STRICT;

-- The state of every task, derived from the place that its row is in. Statements that show a state read it here.
CREATE VIEW task_state AS
SELECT b.seq, b.id, b.queue_id, b.operator, b.task_key,
       CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
            WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
            ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END
       END AS state,
       coalesce(u.attempt, r.attempt, s.attempt, f.attempt, 0) AS attempt,
       coalesce(u.fence, r.fence, s.fence, f.fence, 0) AS fence,
       coalesce(u.worker_id, f.worker_id) AS worker_id,
       coalesce(s.at, r.at) AS waiting_at,
       s.at AS due_at,
       u.expires_at AS lease_expires_at,
       -- A claimed attempt starts when it is granted, a pushed one when its worker says so.
       CASE WHEN coalesce(u.deliveries, f.deliveries) IS NULL THEN coalesce(u.granted_at, f.granted_at)
            ELSE coalesce(u.started_at, f.started_at) END AS started_at,
       u.progress_pct, u.progress_message, f.finished_at, f.dead_lettered_at, f.reason, f.error_code, f.result,
       f.failure, coalesce(f.cancel_reason, u.cancel_reason) AS cancel_reason
FROM bodies b
LEFT JOIN blocked k ON k.seq = b.seq LEFT JOIN scheduled s ON s.seq = b.seq LEFT JOIN ready r ON r.seq = b.seq
LEFT JOIN running u ON u.seq = b.seq LEFT JOIN finished f ON f.seq = b.seq;

-- Tasks for people with an SQL prompt.
CREATE VIEW tasks AS
SELECT lower(substr(hex(b.id), 1, 8) || '-' || substr(hex(b.id), 9, 4) || '-' || substr(hex(b.id), 13, 4) || '-'
             || substr(hex(b.id), 17, 4) || '-' || substr(hex(b.id), 21)) AS task_id,
       q.name AS queue, b.operator, b.tenant, b.owner, b.submitted_by, b.workspace, b.priority, hex(b.run_id) AS run_id, b.task_key,
       t.state, t.attempt, t.fence, t.worker_id,
       strftime('%Y-%m-%dT%H:%M:%fZ', b.created_at / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.waiting_at / 1000.0, 'unixepoch') AS waiting_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.lease_expires_at / 1000.0, 'unixepoch') AS lease_expires_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.finished_at / 1000.0, 'unixepoch') AS finished_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', t.dead_lettered_at / 1000.0, 'unixepoch') AS dead_lettered_at,
       t.reason, t.error_code, t.cancel_reason, b.payload, t.result, t.failure, b.seq
FROM bodies b JOIN queue_names q USING (queue_id) JOIN task_state t ON t.seq = b.seq;

CREATE VIEW attempt_history AS
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state, attempt_reason, receipt
FROM attempts
UNION ALL
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, ended_at, attempt_state, attempt_reason, receipt
FROM finished WHERE attempt_id IS NOT NULL
UNION ALL
SELECT seq, attempt, fence, worker_id, granted_at, last_heartbeat_at, NULL, NULL, NULL, NULL FROM running;
