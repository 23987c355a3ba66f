SELECT o.message, o.receipt, r.seq IS NOT NULL
FROM outbox o
LEFT JOIN ready r ON r.seq = o.seq AND r.message = o.message
LEFT JOIN running u ON u.seq = o.seq AND u.message = o.message
WHERE o.message = ANY($1) AND (r.seq IS NOT NULL OR u.seq IS NOT NULL)
