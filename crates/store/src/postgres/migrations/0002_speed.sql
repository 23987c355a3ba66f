-- Facts are written once, read once and soon removed: compressing them costs more than it saves.
ALTER TABLE events ALTER COLUMN facts SET STORAGE EXTERNAL;
