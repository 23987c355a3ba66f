-- name: spawn_queue_ahead
SELECT q.sandbox_id, q.deadline, q.per_owner, q.per_tenant, s.tenant, s.owner, s.spec, s.refused_by,
    (SELECT count(*) FROM sandboxes c WHERE c.tenant = s.tenant AND c.pool IS NULL
        AND c.worker_id IS NOT NULL AND c.state IN ('creating', 'running', 'idle', 'unhealthy')),
    (SELECT count(*) FROM sandboxes c WHERE c.tenant = s.tenant AND c.owner = s.owner AND c.pool IS NULL
        AND c.worker_id IS NOT NULL AND c.state IN ('creating', 'running', 'idle', 'unhealthy'))
FROM spawn_queue q JOIN sandboxes s ON s.id = q.sandbox_id
WHERE q.provider = $1 AND q.seq + 0 < $2 ORDER BY q.seq + 0 LIMIT $3

-- name: spawn_queue_caps
UPDATE spawn_queue SET per_owner = $2, per_tenant = $3
WHERE sandbox_id = $1 AND (per_owner <> $2 OR per_tenant <> $3)

-- name: spawn_queue_count
SELECT count(*) FROM spawn_queue

-- name: spawn_queue_delete
DELETE FROM spawn_queue WHERE sandbox_id = $1 RETURNING 1

-- name: spawn_queue_get
SELECT seq, sandbox_id, provider, deadline FROM spawn_queue WHERE sandbox_id = $1

-- name: spawn_queue_insert
INSERT INTO spawn_queue (sandbox_id, provider, deadline, per_owner, per_tenant) VALUES ($1, $2, $3, $4, $5)

-- name: spawn_queue_list
SELECT seq, sandbox_id, provider, deadline FROM spawn_queue ORDER BY seq LIMIT $1
