-- Who asks. Of an API key only the hash is kept.
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

-- Worker tokens that are refused until they expire by themselves.
CREATE TABLE worker_revocations (
    token_id   TEXT PRIMARY KEY,
    until      INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Public halves of the keys that sign task tokens.
CREATE TABLE task_keys (
    kid           TEXT PRIMARY KEY,
    jwk           TEXT NOT NULL,
    registered_at INTEGER NOT NULL,
    seen_at       INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who asked an admin endpoint for what.
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

-- Who did what to which resource.
CREATE TABLE operation_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    actor      TEXT NOT NULL,
    action     TEXT NOT NULL,
    resource   TEXT NOT NULL,
    status     TEXT NOT NULL,
    detail     TEXT,
    tenant     TEXT,
    request_id TEXT
) STRICT;

CREATE TABLE tenant_limits (
    tenant     TEXT PRIMARY KEY,
    limits     TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Who submitted a task, inside its tenant.
ALTER TABLE bodies ADD COLUMN owner TEXT;

-- Whose queue it is; NULL is shared by all tenants.
ALTER TABLE queues ADD COLUMN tenant TEXT;

DROP VIEW tasks;
CREATE VIEW tasks AS
SELECT lower(substr(hex(b.id), 1, 8) || '-' || substr(hex(b.id), 9, 4) || '-' || substr(hex(b.id), 13, 4) || '-'
             || substr(hex(b.id), 17, 4) || '-' || substr(hex(b.id), 21)) AS task_id,
       q.name AS queue, b.operator, b.tenant, b.owner, b.workspace, b.priority,
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
