DELETE FROM leases WHERE substr(resource, 1, length(?1)) = ?1 AND expires_at < ?2
