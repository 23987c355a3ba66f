-- name: cron_slots_delete
DELETE FROM cron_slots WHERE org = ?1 AND dag = ?2 AND job = ?3

-- name: cron_slots_of_org
SELECT dag, job, schedule, next_ms FROM cron_slots WHERE org = ?1 ORDER BY dag, job

-- name: cron_slots_put
-- Never back, unless the schedule is another one.
INSERT INTO cron_slots (org, dag, job, schedule, next_ms) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (org, dag, job) DO UPDATE SET schedule = excluded.schedule, next_ms = excluded.next_ms
WHERE cron_slots.schedule <> excluded.schedule OR cron_slots.next_ms < excluded.next_ms
