SELECT seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at, finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled
FROM runs WHERE seq = ANY($1)
