CREATE TABLE meta (
    only_row     int PRIMARY KEY CHECK (only_row = 1),
    next_number  bigint NOT NULL,
    alive_at     timestamptz NOT NULL,
    grace_until  timestamptz NOT NULL,
    gap_ended_at timestamptz NOT NULL
);
INSERT INTO meta VALUES (1, 1, 'epoch', 'epoch', 'epoch');

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
    -- The tenant that owns the queue; NULL is shared by all tenants.
    tenant         text,
    -- How wake-ups of the queue are sent; NULL is embedded.
    transport      text CHECK (transport IN ('redis', 'sqs')),
    -- Where tasks of the queue are pushed, as JSON; NULL is a queue that workers claim from.
    push           text,
    strict         boolean NOT NULL DEFAULT false,
    -- Set for the queue of a job, as JSON.
    dispatch       text,
    CHECK ((rate IS NULL) = (burst IS NULL)),
    CHECK ((bucket_tokens IS NULL) = (bucket_at IS NULL))
);
CREATE INDEX queues_by_push ON queues (queue_id) WHERE push IS NOT NULL;
CREATE INDEX queues_of_jobs ON queues (queue_id) WHERE dispatch IS NOT NULL;

-- Number of rows of each queue in each place, changed with the rows. Each connection has its own row per queue, so that
-- commits do not wait for each other. A single row may be negative, the sum is not. A deleted queue has no row, and none
-- can be inserted: a batch that adds a task while the queue is deleted fails and is tried again.
CREATE TABLE queue_counts (
    queue_id      int NOT NULL REFERENCES queues,
    shard         int NOT NULL,
    blocked       bigint NOT NULL DEFAULT 0,
    scheduled     bigint NOT NULL DEFAULT 0,
    ready         bigint NOT NULL DEFAULT 0,
    running       bigint NOT NULL DEFAULT 0,
    finished      bigint NOT NULL DEFAULT 0,
    dead_lettered bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue_id, shard)
) WITH (fillfactor = 50);

-- Names of deleted queues that still have ended tasks, and how many.
CREATE TABLE deleted_queues (
    queue_id int PRIMARY KEY,
    name     text COLLATE "C" NOT NULL,
    finished bigint NOT NULL
);

CREATE VIEW queue_names AS
SELECT queue_id, name FROM queues UNION ALL SELECT queue_id, name FROM deleted_queues;

-- When a worker last claimed from a queue.
CREATE TABLE queue_seen (
    queue_id int PRIMARY KEY,
    seen_at  timestamptz NOT NULL
);

CREATE TABLE workers (
    worker_id   text PRIMARY KEY,
    incarnation text COLLATE "C" NOT NULL,
    seen_at     timestamptz NOT NULL
);

-- Workers that claim tasks, as control planes have seen them. Lists and `details` are JSON. Nothing is decided by them
-- but who gets no new work: `drained_at`.
CREATE TABLE worker_records (
    worker_id     text COLLATE "C" PRIMARY KEY,
    contracts     text NOT NULL,
    queues        text NOT NULL,
    details       text NOT NULL,
    first_seen_at timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL,
    drained_at    timestamptz,
    drain_reason  text
);
CREATE INDEX worker_records_by_seen ON worker_records (seen_at);
CREATE INDEX worker_records_drained ON worker_records (worker_id) WHERE drained_at IS NOT NULL;

-- Tasks as they were submitted.
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
    -- The user who submitted the task, inside its tenant.
    owner           text,
    -- The run that the task was submitted in, and its name there.
    run_id          uuid,
    task_key        text,
    -- The credential that the task was submitted with.
    submitted_by    text,
    CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL))
);
CREATE UNIQUE INDEX bodies_by_key ON bodies (tenant, workspace, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Tasks of runs that wait for other tasks.
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

-- Tasks that are due later.
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

-- Tasks that may be granted now.
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
-- An index on `seq` itself could also serve "seq = ANY (…)", by a scan of the whole index. On an empty table that looks as
-- cheap as the primary key, and the plan is kept when the table is full. Hence `seq + 0`, here and in other indexes.
CREATE INDEX ready_in_order ON ready (queue_id, priority, at, (seq + 0));
CREATE INDEX ready_by_fairness ON ready (queue_id, fair, priority, at, seq) WHERE fair IS NOT NULL;
CREATE INDEX ready_by_deadline ON ready (deadline) WHERE deadline IS NOT NULL;

-- Tasks held under a lease.
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
    -- For pushed attempts: when to push again, number of pushes, and when the worker started. NULL if claimed.
    push_at             timestamptz,
    deliveries          int,
    started_at          timestamptz,
    CHECK ((cancel_reason IS NULL) = (cancel_requested_at IS NULL)),
    CHECK (cancel_signaled_at IS NULL OR cancel_requested_at IS NOT NULL)
) WITH (
    -- Heartbeats update these rows in place: free space on the page and no index on the columns keep that cheap.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX running_by_claim ON running (worker_id, claim_id) WHERE claim_id IS NOT NULL;
CREATE INDEX running_by_push ON running (queue_id, push_at) WHERE push_at IS NOT NULL;

-- Ended tasks. `ended` is 1 succeeded, 2 failed, 3 canceled, 4 skipped. The columns from `attempt_id` on are the final
-- attempt; a result that was reused from another run has none. `failure` is JSON without the stack.
CREATE TABLE finished (
    seq               bigint PRIMARY KEY,
    queue_id          int NOT NULL,
    ended             smallint NOT NULL CHECK (ended BETWEEN 1 AND 4),
    finished_at       timestamptz NOT NULL,
    result            text,
    failure           text,
    stack             text,
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
    -- For pushed attempts: number of pushes, and when the worker started. NULL if claimed.
    deliveries        int,
    started_at        timestamptz,
    more              text,
    CHECK (ended <> 1 OR (dead_lettered_at IS NULL AND (attempt_id IS NOT NULL OR attempt = 0))),
    CHECK (ended = 1 OR result IS NULL),
    CHECK (ended = 2 OR (reason IS NULL AND dead_lettered_at IS NULL)),
    CHECK (ended <> 3 OR cancel_reason IS NOT NULL),
    CHECK (attempt > 0 OR attempt_id IS NULL)
);
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

-- Ended attempts before the last one.
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
    -- What the attempt used, as JSON.
    metrics           text,
    -- What only attempts of callback workers have, as JSON.
    callback          text,
    -- When the retry was due that its holder was told of.
    retry_at          timestamptz,
    PRIMARY KEY (seq, attempt)
);

-- What attempts print and log, in pieces as their workers sent them. `lines` is JSON. Any of it may be dropped at any time.
CREATE TABLE task_logs (
    piece   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    seq     bigint NOT NULL,
    attempt int NOT NULL CHECK (attempt >= 1),
    at      timestamptz NOT NULL,
    bytes   bigint NOT NULL,
    lines   text NOT NULL
);
CREATE INDEX task_logs_by_task ON task_logs (seq, attempt, bytes);
CREATE INDEX task_logs_by_age ON task_logs (at);

CREATE TABLE redrives (
    redrive_id uuid PRIMARY KEY,
    key        text UNIQUE,
    filter     text NOT NULL,
    rate       double precision CHECK (rate > 0),
    matched    bigint NOT NULL,
    released   bigint NOT NULL DEFAULT 0,
    cursor     bigint NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL,
    finished   boolean NOT NULL DEFAULT false,
    paused     boolean NOT NULL DEFAULT false,
    canceled   boolean NOT NULL DEFAULT false,
    CHECK (finished OR NOT canceled)
);
CREATE INDEX redrives_by_start ON redrives (started_at, redrive_id);

-- What changed, one row per batch, for watchers.
CREATE TABLE events (
    batch bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at    timestamptz NOT NULL,
    facts bytea NOT NULL
);
-- Facts are read once and soon removed: compressing them costs more than it saves.
ALTER TABLE events ALTER COLUMN facts SET STORAGE EXTERNAL;

-- Runs: tasks that depend on each other, and how many of them ended in which way.
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
    -- 1 running, 2 cancelling, 3 succeeded, 4 failed, 5 cancelled: follows from the counts, for lists.
    state         smallint NOT NULL CHECK (state BETWEEN 1 AND 5),
    CHECK ((open = 0) = (finished_at IS NOT NULL))
) WITH (
    -- Every end of a task updates the row in place: no index on the columns that change, apart from the end of the run.
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE UNIQUE INDEX runs_by_key ON runs (tenant, workspace, run_key) WHERE run_key IS NOT NULL;
CREATE INDEX runs_by_end ON runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_by_tenant ON runs (tenant, seq);

-- The tasks of a run. `depends_on` is the list of numbers that each was submitted to wait for.
CREATE TABLE run_tasks (
    task       bigint PRIMARY KEY,
    run        bigint NOT NULL,
    depends_on text
);
CREATE INDEX run_tasks_by_run ON run_tasks (run, (task + 0));

-- Dependencies that are not resolved yet: a row is removed when the upstream task ends.
CREATE TABLE run_edges (
    upstream   bigint NOT NULL,
    downstream bigint NOT NULL,
    PRIMARY KEY (upstream, downstream)
);

-- Effects to perform outside the store, written with the change that causes them. `due_at` is when a row may be taken.
-- Taking it moves `due_at` on, so a crash delays a row and loses none. The row goes when the effect was performed. A
-- wake-up (`enqueue_task`) keeps its row while it is live: until its task ends or is enqueued again.
CREATE TABLE outbox (
    id           bigint PRIMARY KEY,
    kind         text NOT NULL,
    -- Where the effect goes: for wake-ups the transport.
    key          text NOT NULL,
    body         text NOT NULL,
    queue_id     int,
    seq          bigint,
    created_at   timestamptz NOT NULL,
    due_at       timestamptz,
    tries        int NOT NULL DEFAULT 0,
    error        text,
    failed_at    timestamptz,
    published_at timestamptz,
    receipt      text,
    -- Waiting, published, or failed for good.
    CHECK ((due_at IS NOT NULL)::int + (published_at IS NOT NULL)::int + (failed_at IS NOT NULL)::int = 1),
    CHECK ((published_at IS NULL) = (receipt IS NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX outbox_due ON outbox (kind, key, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_failed ON outbox (kind, key, (id + 0)) WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_by_queue ON outbox (queue_id, (id + 0));

-- The server's clock in milliseconds. Tests freeze and move it.
CREATE FUNCTION store_now(frozen timestamptz, ahead_ms bigint) RETURNS timestamptz LANGUAGE sql AS
$$ SELECT coalesce(frozen, date_trunc('milliseconds', clock_timestamp())) + ahead_ms * interval '1 millisecond' $$;

-- Leases on resources other than tasks. A released row stays as a tombstone: the generation of a resource only grows.
CREATE TABLE leases (
    resource_type text NOT NULL CHECK (resource_type IN ('system', 'replica', 'sandbox')),
    resource_id   text COLLATE "C" NOT NULL,
    holder_id     text NOT NULL,
    token         uuid NOT NULL,
    generation    bigint NOT NULL CHECK (generation >= 1),
    acquired_at   timestamptz NOT NULL,
    renewed_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    released_at   timestamptz,
    PRIMARY KEY (resource_type, resource_id)
) WITH (fillfactor = 50);

-- API keys, by hash.
CREATE TABLE api_keys (
    key_id     text COLLATE "C" PRIMARY KEY,
    hash       bytea NOT NULL UNIQUE CHECK (length(hash) = 32),
    name       text NOT NULL,
    role       text NOT NULL,
    tenant     text NOT NULL,
    owner      text,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz
);

-- Worker tokens that are rejected until they expire.
CREATE TABLE worker_revocations (
    token_id   text COLLATE "C" PRIMARY KEY,
    until      timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL
);

-- Workers that have shown a credential of their own: a shared token cannot speak for them.
CREATE TABLE proven_workers (
    worker_id text COLLATE "C" PRIMARY KEY,
    until     timestamptz NOT NULL
);
CREATE INDEX proven_workers_by_end ON proven_workers (until);

-- Public keys that verify task tokens.
CREATE TABLE task_keys (
    kid           text COLLATE "C" PRIMARY KEY,
    jwk           text NOT NULL,
    registered_at timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL
);

-- Secrets that control planes share if their configuration has none.
CREATE TABLE shared_secrets (
    name       text PRIMARY KEY,
    secret     text NOT NULL,
    created_at timestamptz NOT NULL
);

-- Requests to admin endpoints.
CREATE TABLE admin_audit (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at          timestamptz NOT NULL,
    actor       text NOT NULL,
    method      text NOT NULL,
    path        text NOT NULL,
    status      int NOT NULL,
    duration_ms bigint NOT NULL,
    request_id  text NOT NULL,
    remote_addr text NOT NULL,
    user_agent  text,
    tenant      text
);

-- Operations on resources.
CREATE TABLE operation_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    actor      text NOT NULL,
    action     text NOT NULL,
    -- The sandbox that it was about, and the provider of that sandbox.
    sandbox    text,
    provider   text,
    resource   text NOT NULL,
    status     text NOT NULL,
    detail     text,
    tenant     text,
    request_id text
);

-- Queries that were answered. Their text is not kept.
CREATE TABLE query_audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL,
    query_id  text COLLATE "C" NOT NULL,
    org       text NOT NULL,
    -- The user, or the attempt of a task.
    actor     text,
    task      text,
    attempt   integer,
    -- Lists in JSON.
    datasets  text NOT NULL,
    columns   text NOT NULL,
    row_count bigint NOT NULL,
    sql_hash  text NOT NULL,
    -- The file of a result that was exported.
    export    text,
    CHECK ((actor IS NULL) = (task IS NOT NULL))
);
CREATE UNIQUE INDEX query_audit_query ON query_audit (query_id);

-- Temporary keys for the object store, without their secrets. `scope` is JSON.
CREATE TABLE credential_grants (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at            timestamptz NOT NULL,
    org           text NOT NULL,
    task_id       uuid NOT NULL,
    attempt       integer NOT NULL CHECK (attempt > 0),
    backend       text NOT NULL CHECK (backend IN ('embedded', 'sts')),
    access_key_id text NOT NULL,
    purpose       text NOT NULL,
    scope         text NOT NULL,
    expires_at    timestamptz NOT NULL,
    request_id    text NOT NULL
);
CREATE INDEX credential_grants_by_task ON credential_grants (task_id);

CREATE TABLE tenant_limits (
    tenant     text COLLATE "C" PRIMARY KEY,
    limits     text NOT NULL,
    updated_at timestamptz NOT NULL
);

-- What is said about tenants. A tenant needs no row to be used. `settings` is JSON that belongs to clients.
CREATE TABLE tenants (
    id         text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    owner      text,
    settings   text,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);

CREATE TABLE tenant_members (
    tenant     text COLLATE "C" NOT NULL,
    user_id    text COLLATE "C" NOT NULL,
    role       text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, user_id)
);

-- Locked by whoever places a sandbox or hands out a warm one, so that control planes never exceed a cap together.
CREATE TABLE sandbox_gate (
    only_row int PRIMARY KEY CHECK (only_row = 1)
);
INSERT INTO sandbox_gate VALUES (1);

-- Sandboxes. `spec` is JSON; what is searched or summed has columns. A row without a worker waits for room and reserves
-- nothing. `refused_by` is JSON.
CREATE TABLE sandboxes (
    id             text COLLATE "C" PRIMARY KEY,
    tenant         text NOT NULL,
    owner          text,
    state          text NOT NULL CHECK
        (state IN ('creating', 'running', 'idle', 'unhealthy', 'error', 'expired', 'destroyed')),
    reason         text,
    provider       text NOT NULL,
    memory_mb      bigint NOT NULL CHECK (memory_mb >= 0),
    vcpus          bigint NOT NULL CHECK (vcpus >= 0),
    spec           text NOT NULL,
    worker_id      text,
    runtime_id     text,
    request_id     text NOT NULL,
    -- The template of a warm sandbox that nobody has claimed.
    pool           text,
    created_at     timestamptz NOT NULL,
    changed_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    spawn_deadline timestamptz NOT NULL,
    refused_by     text,
    CHECK (state NOT IN ('running', 'idle') OR (worker_id IS NOT NULL AND runtime_id IS NOT NULL)),
    CHECK (state <> 'idle' OR pool IS NOT NULL)
);
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
    worker_id      text COLLATE "C" PRIMARY KEY,
    hostname       text NOT NULL,
    status         text NOT NULL,
    providers      text NOT NULL,
    capabilities   text NOT NULL,
    capacity       text NOT NULL,
    boot_id        text NOT NULL,
    seq            bigint NOT NULL CHECK (seq >= 0),
    inventory      text NOT NULL,
    held           text NOT NULL,
    desired_status text CHECK (desired_status IN ('online', 'draining')),
    drain_reason   text,
    last_heartbeat timestamptz NOT NULL,
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    barred         boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Sandboxes that wait for room, in order of `seq` within a provider. The caps are those of the last try.
CREATE TABLE spawn_queue (
    seq        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sandbox_id text COLLATE "C" NOT NULL UNIQUE,
    provider   text NOT NULL,
    deadline   timestamptz NOT NULL,
    per_owner  bigint NOT NULL CHECK (per_owner >= 0),
    per_tenant bigint NOT NULL CHECK (per_tenant >= 0)
);
CREATE INDEX spawn_queue_by_provider ON spawn_queue (provider, (seq + 0));

-- Idempotency keys of creates. `owner` is empty for callers without one.
CREATE TABLE sandbox_keys (
    tenant      text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL CHECK (length(fingerprint) = 32),
    sandbox_id  text NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (tenant, owner, key)
);
CREATE INDEX sandbox_keys_by_age ON sandbox_keys (created_at);

CREATE TABLE sandbox_templates (
    tenant     text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    version    bigint NOT NULL CHECK (version >= 1),
    body       text NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE sandbox_quotas (
    tenant              text COLLATE "C" NOT NULL,
    owner               text COLLATE "C" NOT NULL,
    max_sandboxes       bigint NOT NULL CHECK (max_sandboxes >= 0),
    max_ttl_ms          bigint NOT NULL CHECK (max_ttl_ms >= 0),
    max_exec_timeout_ms bigint NOT NULL CHECK (max_exec_timeout_ms >= 0),
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    PRIMARY KEY (tenant, owner)
);

-- Rules about what may be spawned. One without a tenant applies to all.
CREATE TABLE sandbox_policies (
    id            text COLLATE "C" PRIMARY KEY,
    tenant        text,
    resource_type text NOT NULL,
    effect        text NOT NULL,
    pattern       text NOT NULL,
    priority      bigint NOT NULL,
    created_at    timestamptz NOT NULL
);
CREATE INDEX sandbox_policies_by_tenant ON sandbox_policies (tenant);

-- Snapshots whose archives are stored whole.
CREATE TABLE sandbox_snapshots (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL,
    owner      text,
    name       text NOT NULL,
    sandbox_id text NOT NULL,
    image      text NOT NULL,
    provider   text NOT NULL,
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    sha256     text NOT NULL,
    created_at timestamptz NOT NULL
);
CREATE INDEX sandbox_snapshots_by_tenant ON sandbox_snapshots (tenant, created_at, id);
CREATE INDEX sandbox_snapshots_by_sandbox ON sandbox_snapshots (sandbox_id, created_at, id);

-- Archives of snapshots in pieces. Those of an upload that was given up are found by their first piece.
CREATE TABLE snapshot_pieces (
    snapshot_id text COLLATE "C" NOT NULL,
    piece       bigint NOT NULL CHECK (piece >= 0),
    bytes       bytea NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (snapshot_id, piece)
);
-- Archives are compressed already.
ALTER TABLE snapshot_pieces ALTER COLUMN bytes SET STORAGE EXTERNAL;
CREATE INDEX snapshot_pieces_first ON snapshot_pieces (created_at) WHERE piece = 0;

-- What happened to sandboxes and workers, for those who watch. Without a tenant it is for operators only.
CREATE TABLE sandbox_events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    kind       text NOT NULL,
    sandbox_id text,
    tenant     text,
    owner      text,
    data       text
);

-- Tasks and runs that are submitted again and again.
CREATE TABLE schedules (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    owner      text COLLATE "C",
    maker      text COLLATE "C",
    kind       text NOT NULL CHECK (kind IN ('task', 'run')),
    definition text NOT NULL,
    template   text NOT NULL,
    state      text NOT NULL,
    paused     boolean NOT NULL,
    due_at     timestamptz,
    version    bigint NOT NULL CHECK (version >= 1),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    UNIQUE (tenant, name)
);
CREATE INDEX schedules_due ON schedules (due_at) WHERE due_at IS NOT NULL;

-- What is deployed, one document per organisation. `seq` grows with every change of it.
CREATE TABLE deployments (
    org        text COLLATE "C" PRIMARY KEY,
    seq        bigint NOT NULL CHECK (seq >= 1),
    document   text NOT NULL,
    changed_at timestamptz NOT NULL
);

CREATE TABLE dag_versions (
    version_id uuid PRIMARY KEY,
    org        text COLLATE "C" NOT NULL,
    dag        text NOT NULL,
    number     bigint NOT NULL,
    yaml       text NOT NULL,
    created_at timestamptz NOT NULL
);

-- Jobs of DAGs. Each has a queue of its own.
CREATE TABLE dag_jobs (
    job_id     bigint PRIMARY KEY,
    org        text COLLATE "C" NOT NULL,
    dag        text NOT NULL,
    name       text NOT NULL,
    definition text NOT NULL,
    queue_id   int NOT NULL
);
CREATE INDEX dag_jobs_by_org ON dag_jobs (org, job_id);

-- The next slot of each cron source, by the job's name: it outlives versions of the DAG.
CREATE TABLE cron_slots (
    org      text COLLATE "C" NOT NULL,
    dag      text COLLATE "C" NOT NULL,
    job      text COLLATE "C" NOT NULL,
    -- What the slot follows from. Another schedule begins anew.
    schedule text NOT NULL,
    next_ms  bigint NOT NULL,
    PRIMARY KEY (org, dag, job)
);

-- Who owns a path of a webhook. A path leads to one DAG, whatever the organisation.
CREATE TABLE webhook_paths (
    path text COLLATE "C" PRIMARY KEY,
    org  text COLLATE "C" NOT NULL,
    dag  text NOT NULL
);
CREATE INDEX webhook_paths_by_org ON webhook_paths (org, path);

-- Signed deliveries of webhooks, each with the name that it first came with. They are known for longer than a signature is
-- valid, so that a delivery sent again under another name is recognised.
CREATE TABLE webhook_signatures (
    digest      bytea PRIMARY KEY CHECK (length(digest) = 32),
    delivery_id text NOT NULL,
    expires_at  timestamptz NOT NULL
);
CREATE INDEX webhook_signatures_by_time ON webhook_signatures (expires_at);

-- Generations of datasets. `generation` counts the invalidations that cover all of it; `cursor` is the highest one produced.
CREATE TABLE dataset_generations (
    version_id uuid PRIMARY KEY,
    dataset_id uuid NOT NULL,
    org        text COLLATE "C" NOT NULL,
    generation bigint NOT NULL DEFAULT 0,
    cursor     bigint,
    created_at timestamptz NOT NULL
);
CREATE INDEX dataset_generations_by_org ON dataset_generations (org, version_id);

-- Who wrote what. An event without `routed_at` has yet to be routed; `unrouted` says why one was not.
CREATE TABLE dataset_events (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    org           text COLLATE "C" NOT NULL,
    dataset_id    uuid NOT NULL,
    version_id    uuid NOT NULL,
    position      text COLLATE "C" NOT NULL,
    generation    bigint NOT NULL,
    cursor        bigint,
    partition_key text COLLATE "C",
    range_start   bigint,
    range_end     bigint,
    producer      uuid,
    attempt       int,
    recorded_at   timestamptz NOT NULL,
    routed_at     timestamptz,
    unrouted      text,
    CHECK ((cursor IS NULL) <> (partition_key IS NULL)),
    CHECK ((range_start IS NULL) = (range_end IS NULL)),
    CHECK ((producer IS NULL) = (attempt IS NULL))
);
CREATE UNIQUE INDEX dataset_events_by_position ON dataset_events (version_id, position, generation);
CREATE INDEX dataset_events_unrouted ON dataset_events (id) WHERE routed_at IS NULL;

-- Batches of rows for buffered datasets. Each waits, is done, or is a dead letter. A batch that is done has no body.
CREATE TABLE buffer_publishes (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    publish_id uuid NOT NULL UNIQUE,
    org        text COLLATE "C" NOT NULL,
    dataset_id uuid NOT NULL,
    digest     text NOT NULL,
    body       text NOT NULL,
    bytes      bigint NOT NULL,
    created_at timestamptz NOT NULL,
    due_at     timestamptz,
    receives   int NOT NULL DEFAULT 0,
    error      text,
    done_at    timestamptz,
    dead_at    timestamptz,
    CHECK ((due_at IS NOT NULL)::int + (done_at IS NOT NULL)::int + (dead_at IS NOT NULL)::int = 1)
);
CREATE INDEX buffer_publishes_waiting ON buffer_publishes (dataset_id, number) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_due ON buffer_publishes (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_of_org ON buffer_publishes (org, bytes) WHERE due_at IS NOT NULL;
CREATE INDEX buffer_publishes_dead ON buffer_publishes (dataset_id, number) WHERE dead_at IS NOT NULL;
CREATE INDEX buffer_publishes_dead_at ON buffer_publishes (dead_at) WHERE dead_at IS NOT NULL;
CREATE INDEX buffer_publishes_done_at ON buffer_publishes (done_at) WHERE done_at IS NOT NULL;

-- Bundles of code that jobs run. Their bytes are in the object store.
CREATE TABLE udf_bundles (
    bundle_id  uuid PRIMARY KEY,
    org        text COLLATE "C" NOT NULL,
    sha256     text COLLATE "C" NOT NULL CHECK (length(sha256) = 64),
    manifest   text NOT NULL,
    bytes      bigint NOT NULL,
    created_at timestamptz NOT NULL,
    UNIQUE (org, sha256)
);

-- Partitions of generations. One without a location was invalidated before anything was committed to it.
CREATE TABLE dataset_partitions (
    version_id      uuid NOT NULL,
    key             text COLLATE "C" NOT NULL,
    range_start     bigint,
    range_end       bigint,
    generation      bigint NOT NULL,
    location        text,
    row_count       bigint,
    bytes           bigint,
    schema_hash     text,
    manifest        text,
    artifact        uuid,
    materialized_at timestamptz,
    producer        uuid,
    attempt         int,
    PRIMARY KEY (version_id, key),
    CHECK ((range_start IS NULL) = (range_end IS NULL)),
    CHECK ((location IS NULL) = (materialized_at IS NULL)),
    CHECK ((producer IS NULL) = (attempt IS NULL))
);

-- Names that workers gave what they published. A name stands for one content.
CREATE TABLE dataset_artifacts (
    dataset_id uuid NOT NULL,
    artifact   uuid NOT NULL,
    version_id uuid NOT NULL,
    digest     bytea NOT NULL,
    PRIMARY KEY (dataset_id, artifact)
);
CREATE INDEX dataset_artifacts_by_version ON dataset_artifacts (version_id);

-- How far jobs have read generations by cursor.
CREATE TABLE edge_cursors (
    job_id     bigint NOT NULL,
    version_id uuid NOT NULL,
    value      bigint NOT NULL,
    PRIMARY KEY (job_id, version_id)
);

-- Partitions that jobs have read, and at which generation.
CREATE TABLE edge_partitions (
    job_id     bigint NOT NULL,
    version_id uuid NOT NULL,
    key        text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    PRIMARY KEY (job_id, version_id, key)
);

-- Data that has changed. `generation` is NULL only inside the transaction that applies the invalidation. `dependents` is
-- NULL until its tasks were made.
CREATE TABLE data_invalidations (
    invalidation_id uuid PRIMARY KEY,
    org             text COLLATE "C" NOT NULL,
    dataset_id      uuid NOT NULL,
    version_id      uuid NOT NULL,
    partition_key   text COLLATE "C",
    row_filter      text,
    reason          text NOT NULL,
    generation      bigint,
    created_at      timestamptz NOT NULL,
    dependents      bigint,
    CHECK ((partition_key IS NULL) <> (row_filter IS NULL))
);
CREATE INDEX data_invalidations_open ON data_invalidations (created_at, invalidation_id) WHERE dependents IS NULL;
CREATE INDEX data_invalidations_by_version ON data_invalidations (version_id);

-- Jobs that an invalidation makes run again. A row without `done_at` is a task that has yet to succeed.
CREATE TABLE invalidation_dependents (
    invalidation_id uuid NOT NULL,
    job_id          bigint NOT NULL,
    done_at         timestamptz,
    PRIMARY KEY (invalidation_id, job_id)
);
CREATE INDEX invalidation_dependents_by_job ON invalidation_dependents (job_id);

-- What jobs keep from one task to the next.
CREATE TABLE operator_state (
    job_id     bigint PRIMARY KEY,
    state      text NOT NULL,
    changed_at timestamptz NOT NULL
);

-- The state of every task, derived from the place that its row is in. Statements that show a state read it here.
-- With two more tables a query has eight, the most that the planner reorders.
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
SELECT b.id AS task_id, q.name AS queue, b.operator, b.tenant, b.owner, b.submitted_by, b.workspace, b.priority, b.run_id, b.task_key,
       t.state, t.attempt, t.fence, t.worker_id,
       b.created_at, t.waiting_at, t.lease_expires_at, t.finished_at, t.dead_lettered_at,
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
