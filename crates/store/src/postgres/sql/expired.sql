-- Deadlines come first: leases may be held back for a while, and would fill the page until then.
SELECT seq FROM ready WHERE deadline <= $1
UNION ALL
SELECT seq FROM scheduled WHERE deadline <= $1
UNION ALL
SELECT seq FROM blocked WHERE deadline <= $1
UNION ALL
SELECT seq FROM running WHERE expires_at <= $1
LIMIT $2
