SELECT b.seq FROM {source}
WHERE b.seq < $1
  AND ($2::int IS NULL OR b.queue_id = $2)
  AND ($3::text IS NULL OR b.operator = $3)
  AND ($4::text IS NULL OR b.tenant = $4)
  AND ($5::text IS NULL OR b.workspace = $5)
  AND ($6::text IS NULL OR strpos(',' || substr(b.tags, 2), $6) > 0)
  AND ($8::text IS NULL OR b.owner = $8)
ORDER BY b.seq DESC LIMIT $7
