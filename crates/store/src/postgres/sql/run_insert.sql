INSERT INTO runs (seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at, finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
