-- Timers look at a row only if it may have a deadline to miss: a lock, however short, hides it from claims.
SELECT seq, id, queue_id, priority, at, fair, message, attempt, fence, deadline, carry
FROM ready WHERE seq = ANY($1) AND (deadline IS NOT NULL OR seq <> ALL($2)) ORDER BY seq FOR UPDATE
