-- name: cron_slots_delete
DELETE FROM cron_slots s USING unnest($2::text[], $3::text[]) AS v (dag, job)
WHERE s.org = $1 AND s.dag = v.dag AND s.job = v.job

-- name: cron_slots_of_org
SELECT dag, job, schedule, next_ms FROM cron_slots WHERE org = $1 ORDER BY dag, job

-- name: cron_slots_put
-- Never back, unless the schedule is another one.
INSERT INTO cron_slots AS s (org, dag, job, schedule, next_ms)
SELECT $1, v.dag, v.job, v.schedule, v.next_ms
FROM unnest($2::text[], $3::text[], $4::text[], $5::bigint[]) AS v (dag, job, schedule, next_ms)
ORDER BY v.dag COLLATE "C", v.job COLLATE "C"
ON CONFLICT (org, dag, job) DO UPDATE SET schedule = excluded.schedule, next_ms = excluded.next_ms
WHERE s.schedule <> excluded.schedule OR s.next_ms < excluded.next_ms
