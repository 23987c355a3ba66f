SELECT b.id, b.task_key,
    CASE WHEN u.seq IS NOT NULL THEN 'Running' WHEN r.seq IS NOT NULL THEN 'Ready'
         WHEN s.seq IS NOT NULL THEN 'Scheduled' WHEN k.seq IS NOT NULL THEN 'Blocked'
         ELSE CASE f.ended WHEN 1 THEN 'Succeeded' WHEN 2 THEN 'Failed' WHEN 4 THEN 'Skipped' ELSE 'Canceled' END END
FROM bodies b
LEFT JOIN blocked k ON k.seq = b.seq LEFT JOIN scheduled s ON s.seq = b.seq LEFT JOIN ready r ON r.seq = b.seq
LEFT JOIN running u ON u.seq = b.seq LEFT JOIN finished f ON f.seq = b.seq
WHERE b.seq = ? AND b.task_key IS NOT NULL AND f.ended IS DISTINCT FROM 1 ORDER BY b.seq
