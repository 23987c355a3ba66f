SELECT b.seq FROM {source}
WHERE b.seq < ?1
  AND (?2 IS NULL OR b.queue_id = ?2)
  AND (?3 IS NULL OR b.operator = ?3)
  AND (?4 IS NULL OR b.tenant = ?4)
  AND (?5 IS NULL OR b.workspace = ?5)
  AND (?6 IS NULL OR instr(',' || substr(b.tags, 2), ?6) > 0)
  AND (?8 IS NULL OR b.owner = ?8)
ORDER BY b.seq DESC LIMIT ?7
