SELECT coalesce(max(lease_ttl_ms), 0) FROM running
