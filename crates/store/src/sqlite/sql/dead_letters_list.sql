SELECT f.seq FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > ?1
  AND (?2 IS NULL OR f.queue_id = ?2)
  AND (?3 IS NULL OR b.operator = ?3)
  AND (?4 IS NULL OR f.reason = ?4)
  AND (?5 IS NULL OR f.error_code = ?5)
  AND (?6 IS NULL OR b.tenant = ?6)
  AND (?7 IS NULL OR f.dead_lettered_at >= ?7)
  AND (?8 IS NULL OR f.dead_lettered_at < ?8)
  AND (?9 IS NULL OR f.seq IN (SELECT value FROM json_each(?9)))
  AND (?10 IS NULL OR b.owner = ?10)
ORDER BY f.seq LIMIT ?11
