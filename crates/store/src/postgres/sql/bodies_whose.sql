-- Of tasks and of runs: no run has the number of a task.
SELECT seq, tenant, owner FROM bodies WHERE seq = ANY($1)
UNION ALL
SELECT seq, tenant, owner FROM runs WHERE seq = ANY($1)
