-- name: operator_state_delete
DELETE FROM operator_state WHERE job_id = ANY($1)

-- name: operator_state_get
SELECT state FROM operator_state WHERE job_id = $1

-- name: operator_state_put
INSERT INTO operator_state (job_id, state, changed_at)
SELECT job_id, state, $3 FROM unnest($1::bigint[], $2::text[]) AS v (job_id, state) ORDER BY job_id
ON CONFLICT (job_id) DO UPDATE SET state = excluded.state, changed_at = excluded.changed_at
