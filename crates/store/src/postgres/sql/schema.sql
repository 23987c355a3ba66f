-- name: schema_get
-- The newest schema, and the oldest that a binary may know to run on it. Without a word on that: the same.
SELECT coalesce(max(version), 0), coalesce(max(coalesce(oldest, version)), 0) FROM schema_version

-- name: schema_make
CREATE TABLE IF NOT EXISTS schema_version (version bigint NOT NULL, oldest bigint);
-- Older binaries left it out. Asked for first: to add what is there would still lock the table.
DO $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_attribute
                   WHERE attrelid = 'schema_version'::regclass AND attname = 'oldest' AND NOT attisdropped) THEN
        ALTER TABLE schema_version ADD COLUMN oldest bigint;
    END IF;
END
$$
