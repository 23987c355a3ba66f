SELECT clock_timestamp(), alive_at, grace_until FROM meta
