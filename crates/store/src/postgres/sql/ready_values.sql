-- Walks from value to value through the index: the cost is that of the values, not of the rows.
WITH RECURSIVE ring (value, n) AS (
    SELECT (SELECT min(fair) FROM ready WHERE queue_id = $1 AND fair IS NOT NULL AND ($2::text IS NULL OR fair > $2)), 1::bigint
    UNION ALL
    SELECT (SELECT min(fair) FROM ready WHERE queue_id = $1 AND fair > ring.value), n + 1
    FROM ring WHERE ring.value IS NOT NULL AND n < $3
)
SELECT value FROM ring WHERE value IS NOT NULL
