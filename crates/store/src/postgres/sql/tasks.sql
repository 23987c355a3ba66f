-- name: tasks_counted
-- Tasks of jobs that have a tag: all, those that succeeded, and those that ended otherwise.
SELECT count(*), count(*) FILTER (WHERE f.ended = 1), count(*) FILTER (WHERE f.ended <> 1)
FROM bodies b LEFT JOIN finished f ON f.seq = b.seq
WHERE b.tenant = $1 AND b.workspace = ANY($2) AND b.idempotency_key IS NOT NULL
  AND strpos(',' || substr(b.tags, 2), $3) > 0

-- name: tasks_expired
-- Deadlines come first, then leases from after the last outage: those from before may be held back and would fill the page.
SELECT seq FROM ready WHERE deadline <= $1
UNION ALL
SELECT seq FROM scheduled WHERE deadline <= $1
UNION ALL
SELECT seq FROM blocked WHERE deadline <= $1
UNION ALL
SELECT seq FROM running
WHERE expires_at <= $1 AND coalesce(last_heartbeat_at, granted_at) > (SELECT gap_ended_at FROM meta)
UNION ALL
SELECT seq FROM running
WHERE expires_at <= $1 AND coalesce(last_heartbeat_at, granted_at) <= (SELECT gap_ended_at FROM meta)
LIMIT $2

-- name: tasks_list
SELECT b.seq FROM {source}
WHERE b.seq < $1 AND b.seq >= $9
  AND ($2::int IS NULL OR b.queue_id = $2)
  AND ($3::text IS NULL OR b.operator = $3)
  AND ($4::text IS NULL OR b.tenant = $4)
  AND ($5::text IS NULL OR b.workspace = $5)
  AND ($6::text IS NULL OR strpos(',' || substr(b.tags, 2), $6) > 0)
  AND ($8::text IS NULL OR b.owner = $8)
  AND ($10::uuid IS NULL OR b.id BETWEEN $10 AND $11 OR b.id BETWEEN $12 AND $13)
  AND ($14::uuid IS NULL OR b.run_id = $14)
  AND ($15::text IS NULL OR b.idempotency_key = $15)
  AND ($16::text IS NULL OR EXISTS (SELECT 1 FROM running w WHERE w.seq = b.seq AND w.worker_id = $16)
    OR EXISTS (SELECT 1 FROM finished w WHERE w.seq = b.seq AND w.worker_id = $16))
  AND ($17::text IS NULL OR EXISTS (SELECT 1 FROM finished e WHERE e.seq = b.seq AND e.error_code = $17))
  AND ($18::timestamptz IS NULL OR b.created_at >= $18)
  AND ($19::timestamptz IS NULL OR b.created_at < $19)
  AND ($20::text IS NULL OR b.submitted_by = $20)
ORDER BY b.seq DESC LIMIT $7

-- name: tasks_nth
-- Where the newest so many tasks begin.
SELECT seq FROM bodies ORDER BY seq DESC LIMIT 1 OFFSET $1

-- name: tenant_usage
SELECT count(*) FILTER (WHERE p.place = 1), count(*) FILTER (WHERE p.place = 2), count(*) FILTER (WHERE p.place = 3),
       coalesce(sum(octet_length(b.payload)), 0)::bigint
FROM (SELECT seq, 1 AS place FROM ready UNION ALL SELECT seq, 2 FROM scheduled UNION ALL SELECT seq, 3 FROM running
      UNION ALL SELECT seq, 2 FROM blocked) p
JOIN bodies b ON b.seq = p.seq WHERE b.tenant = $1
