-- How the wake-ups of a queue travel; NULL is embedded.
ALTER TABLE queues ADD COLUMN transport text CHECK (transport IN ('redis', 'sqs'));

-- What has to leave the store, written with the change that causes it. A wake-up has a row for as long as it is live:
-- from the enqueue of its task until the task ends or is enqueued again. `due_at` is when somebody may take it in hand:
-- whoever does moves it on, so a crash delays a row and strands none.
CREATE TABLE outbox (
    message      bigint PRIMARY KEY,
    kind         text NOT NULL DEFAULT 'enqueue_task' CHECK (kind = 'enqueue_task'),
    transport    text NOT NULL,
    queue_id     int NOT NULL,
    seq          bigint NOT NULL,
    id           uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    due_at       timestamptz,
    tries        int NOT NULL DEFAULT 0,
    error        text,
    failed_at    timestamptz,
    published_at timestamptz,
    receipt      text,
    -- Waiting, published, or given up.
    CHECK ((due_at IS NOT NULL)::int + (published_at IS NOT NULL)::int + (failed_at IS NOT NULL)::int = 1),
    CHECK ((published_at IS NULL) = (receipt IS NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX outbox_due ON outbox (transport, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_failed ON outbox (transport, (message + 0)) WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_by_queue ON outbox (queue_id, (message + 0));

-- What one control plane does for all: who does it, and until when.
CREATE TABLE leases (
    resource    text COLLATE "C" PRIMARY KEY,
    holder      text NOT NULL,
    token       uuid NOT NULL,
    generation  bigint NOT NULL CHECK (generation >= 1),
    acquired_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL
);
