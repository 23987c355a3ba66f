SELECT resource, holder, token, generation, acquired_at, expires_at FROM leases ORDER BY resource
