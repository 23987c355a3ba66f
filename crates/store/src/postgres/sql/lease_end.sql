UPDATE leases SET expires_at = $2 WHERE resource = $1
