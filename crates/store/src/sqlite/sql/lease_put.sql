INSERT INTO leases (resource, holder, token, generation, acquired_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (resource) DO UPDATE
SET holder = excluded.holder, token = excluded.token, generation = excluded.generation,
    acquired_at = excluded.acquired_at, expires_at = excluded.expires_at
