SELECT f.seq FROM finished f JOIN bodies b ON b.seq = f.seq
WHERE f.dead_lettered_at IS NOT NULL AND f.seq > $1
  AND ($2::int IS NULL OR f.queue_id = $2)
  AND ($3::text IS NULL OR b.operator = $3)
  AND ($4::text IS NULL OR f.reason = $4)
  AND ($5::text IS NULL OR f.error_code = $5)
  AND ($6::text IS NULL OR b.tenant = $6)
  AND ($7::timestamptz IS NULL OR f.dead_lettered_at >= $7)
  AND ($8::timestamptz IS NULL OR f.dead_lettered_at < $8)
  AND ($9::bigint[] IS NULL OR f.seq = ANY($9))
  AND ($10::text IS NULL OR b.owner = $10)
ORDER BY f.seq LIMIT $11
