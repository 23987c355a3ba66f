SELECT resource, holder, token, generation, acquired_at, expires_at
FROM leases WHERE resource = ANY ($1) ORDER BY resource FOR UPDATE
