-- name: schema_get
-- The newest schema, and the oldest version that a binary must know to run on it. Without `oldest`, the schema itself.
SELECT coalesce(max(version), 0), coalesce(max(coalesce(oldest, version)), 0) FROM schema_version

-- name: schema_lock
SELECT pg_advisory_xact_lock($1)

-- name: schema_make
CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL, oldest bigint)

-- name: schema_put
INSERT INTO schema_version (version, oldest) VALUES ($1, $1)

-- name: schema_there
SELECT to_regclass('schema_version') IS NOT NULL
