-- The check on `ended` was a list. SQLite makes a table of a list, for every row that is inserted.
DROP VIEW tasks;
DROP VIEW attempt_history;
ALTER TABLE finished RENAME TO finished_before;
CREATE TABLE finished (
    seq               INTEGER PRIMARY KEY,
    queue_id          INTEGER NOT NULL,
    ended             INTEGER NOT NULL CHECK (ended BETWEEN 1 AND 3),
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
INSERT INTO finished SELECT * FROM finished_before;
DROP TABLE finished_before;
CREATE INDEX finished_unsuccessful ON finished (ended, seq) WHERE ended <> 1;
CREATE INDEX finished_dead ON finished (seq) WHERE dead_lettered_at IS NOT NULL;

-- How many attempts of a queue are open stands in queue_counts, changed in the same transaction.
DROP INDEX running_by_queue;

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
