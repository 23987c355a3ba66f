-- Who asks. Of an API key only the hash is kept.
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

-- Worker tokens that are refused until they expire by themselves.
CREATE TABLE worker_revocations (
    token_id   text COLLATE "C" PRIMARY KEY,
    until      timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL
);

-- Public halves of the keys that sign task tokens.
CREATE TABLE task_keys (
    kid           text COLLATE "C" PRIMARY KEY,
    jwk           text NOT NULL,
    registered_at timestamptz NOT NULL,
    seen_at       timestamptz NOT NULL
);

-- Who asked an admin endpoint for what.
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

-- Who did what to which resource.
CREATE TABLE operation_audit (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    actor      text NOT NULL,
    action     text NOT NULL,
    resource   text NOT NULL,
    status     text NOT NULL,
    detail     text,
    tenant     text,
    request_id text
);

CREATE TABLE tenant_limits (
    tenant     text COLLATE "C" PRIMARY KEY,
    limits     text NOT NULL,
    updated_at timestamptz NOT NULL
);

-- Who submitted a task, inside its tenant.
ALTER TABLE bodies ADD COLUMN owner text;

-- Whose queue it is; NULL is shared by all tenants.
ALTER TABLE queues ADD COLUMN tenant text;

DROP VIEW tasks;
CREATE VIEW tasks AS
SELECT b.id AS task_id,
       q.name AS queue, b.operator, b.tenant, b.owner, b.workspace, b.priority,
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
