-- Of tasks and of runs: no run has the number of a task.
SELECT tenant, owner FROM bodies WHERE seq = ?1 UNION ALL SELECT tenant, owner FROM runs WHERE seq = ?1
