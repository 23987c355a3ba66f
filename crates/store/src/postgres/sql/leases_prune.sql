DELETE FROM leases WHERE starts_with(resource, $1) AND expires_at < $2 RETURNING resource
