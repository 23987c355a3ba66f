SELECT alive_at, grace_until FROM meta
