-- The newest schema, and the oldest that a binary may know to run on it. Without a word on that: the same.
SELECT coalesce(max(version), 0), coalesce(max(coalesce(oldest, version)), 0) FROM schema_version
