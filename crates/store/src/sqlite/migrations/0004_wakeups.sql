-- How the wake-ups of a queue travel; NULL is embedded.
ALTER TABLE queues ADD COLUMN transport TEXT CHECK (transport IN ('redis', 'sqs'));

-- What has to leave the store, written with the change that causes it. A wake-up has a row for as long as it is live:
-- from the enqueue of its task until the task ends or is enqueued again. `due_at` is when somebody may take it in hand:
-- whoever does moves it on, so a crash delays a row and strands none.
CREATE TABLE outbox (
    message      INTEGER PRIMARY KEY,
    kind         TEXT NOT NULL DEFAULT 'enqueue_task' CHECK (kind = 'enqueue_task'),
    transport    TEXT NOT NULL,
    queue_id     INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    id           BLOB NOT NULL CHECK (length(id) = 16),
    created_at   INTEGER NOT NULL,
    due_at       INTEGER,
    tries        INTEGER NOT NULL DEFAULT 0,
    error        TEXT,
    failed_at    INTEGER,
    published_at INTEGER,
    receipt      TEXT,
    -- Waiting, published, or given up.
    CHECK ((due_at IS NOT NULL) + (published_at IS NOT NULL) + (failed_at IS NOT NULL) = 1),
    CHECK ((published_at IS NULL) = (receipt IS NULL))
) STRICT;
CREATE INDEX outbox_due ON outbox (transport, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_failed ON outbox (transport, message) WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_by_queue ON outbox (queue_id, message);

-- What one control plane does for all: who does it, and until when.
CREATE TABLE leases (
    resource    TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    token       BLOB NOT NULL CHECK (length(token) = 16),
    generation  INTEGER NOT NULL CHECK (generation >= 1),
    acquired_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
