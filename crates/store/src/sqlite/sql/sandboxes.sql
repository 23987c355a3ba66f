-- name: sandbox_get
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE id = ?1

-- name: sandbox_insert
INSERT INTO sandboxes (id, tenant, owner, state, reason, provider, memory_mb, vcpus, spec, worker_id, runtime_id,
    request_id, pool, created_at, changed_at, expires_at, spawn_deadline, refused_by)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)

-- name: sandbox_save
UPDATE sandboxes SET tenant = ?2, owner = ?3, state = ?4, reason = ?5, spec = ?6, worker_id = ?7, runtime_id = ?8,
    pool = ?9, changed_at = ?10, expires_at = ?11, spawn_deadline = ?12, refused_by = ?13
WHERE id = ?1

-- name: sandbox_taken
-- Ids are not used again: the lease of a destroyed sandbox stays.
SELECT EXISTS (SELECT 1 FROM leases WHERE resource_type = 'sandbox' AND resource_id = ?1)

-- name: sandboxes_count
SELECT state, provider, worker_id, count(*)
FROM sandboxes WHERE state <> 'destroyed' GROUP BY state, provider, worker_id

-- name: sandboxes_count_warm
SELECT pool, count(*) FILTER (WHERE state = 'idle'), count(*) FILTER (WHERE state = 'creating')
FROM sandboxes WHERE pool IS NOT NULL AND state IN ('creating', 'idle') GROUP BY pool ORDER BY pool

-- name: sandboxes_counted
-- Warm sandboxes count in total only.
SELECT (SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND pool IS NULL
        AND worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy')),
    (SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND owner = ?2 AND pool IS NULL
        AND worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy'))

-- name: sandboxes_idle
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE pool = ?1 AND pool IS NOT NULL AND state IN ('creating', 'idle') AND state = 'idle'
ORDER BY created_at, id LIMIT ?2

-- name: sandboxes_leases
-- From the rows that are not destroyed: released leases stay for ever.
SELECT count(*) FILTER (WHERE l.expires_at > ?1), count(*) FILTER (WHERE l.expires_at <= ?1)
FROM sandboxes s JOIN leases l ON l.resource_type = 'sandbox' AND l.resource_id = s.id
WHERE s.state <> 'destroyed' AND l.released_at IS NULL

-- name: sandboxes_list
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE state <> 'destroyed' AND (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_list_all
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_named
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE id IN (SELECT value FROM json_each(?1))

-- name: sandboxes_of_owner
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE state <> 'destroyed' AND owner IS NOT NULL AND tenant = ?8 AND owner = ?9
  AND (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_of_tenant
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE state <> 'destroyed' AND tenant = ?8 AND (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_of_worker
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE state <> 'destroyed' AND worker_id IS NOT NULL AND worker_id = ?4
  AND (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_over
-- The index finds those that are over; there are few.
SELECT id, tenant, owner, state, reason, spec, worker_id, runtime_id, request_id, pool, created_at, changed_at,
    expires_at, spawn_deadline, refused_by
FROM sandboxes WHERE state <> 'destroyed' AND expires_at <= ?5
  AND state IN ('creating', 'running', 'idle', 'unhealthy', 'error', 'expired') AND (created_at, id) < (?1, ?2)
  AND (?3 IS NULL OR state IN (SELECT value FROM json_each(?3)))
  AND (?4 IS NULL OR worker_id = ?4)
  AND (?5 IS NULL OR expires_at <= ?5)
  AND (?6 IS NULL OR changed_at < ?6)
  AND (?8 IS NULL OR tenant = ?8)
  AND (?9 IS NULL OR owner = ?9)
ORDER BY created_at DESC, id DESC LIMIT ?7

-- name: sandboxes_prune
DELETE FROM sandboxes WHERE state = 'destroyed' AND id IN
    (SELECT id FROM sandboxes WHERE state = 'destroyed' AND changed_at < ?1 ORDER BY changed_at LIMIT ?2)

-- name: sandboxes_total
SELECT count(*) FROM sandboxes WHERE worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy')

-- name: sandboxes_usage
SELECT worker_id, count(*), sum(memory_mb), sum(vcpus), json_group_array(id)
FROM sandboxes WHERE worker_id IS NOT NULL AND state IN ('creating', 'running', 'idle', 'unhealthy')
GROUP BY worker_id
