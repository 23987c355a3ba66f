SELECT seq, id, run_key, tenant, workspace, owner, fingerprint, labels, deadline, parent, created_at, finished_at,
    cancel_reason, open, succeeded, failed, skipped, canceled
FROM runs WHERE seq < ?1 AND seq >= ?11
  AND (?2 IS NULL OR tenant = ?2)
  AND (?3 IS NULL OR owner = ?3)
  AND (?4 IS NULL OR workspace = ?4)
  AND (?5 IS NULL OR run_key = ?5)
  AND (?6 IS NULL OR instr(',' || substr(labels, 2), ?6) > 0)
  AND (?7 IS NULL OR created_at >= ?7)
  AND (?8 IS NULL OR created_at < ?8)
  AND (?9 IS NULL OR ?9 =
    CASE WHEN open > 0 THEN CASE WHEN cancel_reason IS NULL THEN 'RUNNING' ELSE 'CANCELLING' END
         WHEN canceled > 0 THEN 'CANCELLED' WHEN failed > 0 THEN 'FAILED' ELSE 'SUCCEEDED' END)
ORDER BY seq DESC LIMIT ?10
