-- name: sandbox_worker_add
-- Makes the row that a heartbeat locks and then fills.
INSERT INTO sandbox_workers (worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, inventory,
    held, last_heartbeat, created_at, updated_at)
VALUES (?1, '', 'offline', '[]', '[]', '{}', '', 0, '[]', '[]', ?2, ?2, ?2)
ON CONFLICT (worker_id) DO NOTHING

-- name: sandbox_worker_bar
UPDATE sandbox_workers SET barred = true WHERE worker_id = ?1

-- name: sandbox_worker_bare
-- Without the inventory, which calls do not need and which may be long.
SELECT worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, desired_status, drain_reason,
    last_heartbeat, created_at, updated_at, barred, '[]'
FROM sandbox_workers WHERE worker_id = ?1

-- name: sandbox_worker_delete
DELETE FROM sandbox_workers WHERE worker_id = ?1

-- name: sandbox_worker_desire
UPDATE sandbox_workers SET desired_status = ?2, drain_reason = ?3, updated_at = ?4 WHERE worker_id = ?1 RETURNING
    worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, desired_status, drain_reason,
    last_heartbeat, created_at, updated_at, barred, inventory

-- name: sandbox_worker_get
SELECT worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, desired_status, drain_reason,
    last_heartbeat, created_at, updated_at, barred, inventory
FROM sandbox_workers WHERE worker_id = ?1

-- name: sandbox_worker_inventory
UPDATE sandbox_workers SET inventory = ?2 WHERE worker_id = ?1

-- name: sandbox_worker_save
UPDATE sandbox_workers SET hostname = ?2, status = ?3, providers = ?4, capabilities = ?5, capacity = ?6, boot_id = ?7,
    seq = ?8, inventory = ?9, held = ?10, last_heartbeat = ?11, updated_at = ?11, barred = false
WHERE worker_id = ?1

-- name: sandbox_workers_fleet
SELECT worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, desired_status, drain_reason,
    last_heartbeat, created_at, updated_at, barred, held
FROM sandbox_workers ORDER BY worker_id

-- name: sandbox_workers_list
-- Without the inventories, which may be long.
SELECT worker_id, hostname, status, providers, capabilities, capacity, boot_id, seq, desired_status, drain_reason,
    last_heartbeat, created_at, updated_at, barred, '[]'
FROM sandbox_workers ORDER BY worker_id
