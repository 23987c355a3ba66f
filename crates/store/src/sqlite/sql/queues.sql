-- name: queue_delete
DELETE FROM queues WHERE queue_id = ?

-- name: queue_names
SELECT name FROM queue_names WHERE queue_id = ?

-- name: queue_save
UPDATE queues
SET paused = ?2, max_running = ?3, rate = ?4, burst = ?5, fairness_key = ?6, lease_ttl_ms = ?7, heartbeat_ms = ?8,
    no_dead_letter = ?9, bucket_tokens = ?10, bucket_at = ?11, fair_cursor = ?12, transport = ?13, push = ?14,
    strict = ?15, dispatch = ?16
WHERE queue_id = ?1

-- name: queue_seen_get
SELECT seen_at FROM queue_seen WHERE queue_id = ?

-- name: queue_seen_prune
DELETE FROM queue_seen WHERE NOT EXISTS (SELECT 1 FROM queues q WHERE q.queue_id = queue_seen.queue_id)

-- name: queue_seen_put
INSERT OR REPLACE INTO queue_seen (queue_id, seen_at) VALUES (?, ?)

-- name: queues_all
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues

-- name: queues_list
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE name > ?1 AND (?2 IS NULL OR tenant IS NULL OR tenant = ?2) ORDER BY name LIMIT ?3

-- name: queues_make
INSERT INTO queues (name, tenant, transport) VALUES (?, ?, ?) ON CONFLICT DO NOTHING

-- name: queues_make_for_jobs
INSERT INTO queues (name, tenant, transport, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms,
    no_dead_letter, push, strict, dispatch)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
ON CONFLICT DO NOTHING

-- name: queues_of_ids
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE queue_id = ?

-- name: queues_of_names
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE name = ?

-- name: queues_of_push
SELECT queue_id, name, paused, max_running, rate, burst, fairness_key, lease_ttl_ms, heartbeat_ms, no_dead_letter,
    bucket_tokens, bucket_at, fair_cursor, tenant, transport, push, strict, dispatch
FROM queues WHERE push IS NOT NULL

-- name: queues_set_held
UPDATE queues SET dispatch = json_set(dispatch, '$.held', json(?3))
WHERE queue_id = (SELECT j.queue_id FROM dag_jobs j WHERE j.job_id = ?2 AND j.org = ?1)
