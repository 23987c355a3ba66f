-- Facts are written once, read once and soon removed: compressing them costs more than it saves.
ALTER TABLE events ALTER COLUMN facts SET STORAGE EXTERNAL;

-- How many attempts of a queue are open stands in queue_counts, changed in the same transaction.
DROP INDEX running_by_queue;

-- With the bare number in it, this index too would serve "seq = ANY (…)", by a walk through all of it. While the table is
-- empty that looks as cheap as the primary key, and a plan made then is kept when the table is full.
DROP INDEX ready_in_order;
CREATE INDEX ready_in_order ON ready (queue_id, priority, at, (seq + 0));
