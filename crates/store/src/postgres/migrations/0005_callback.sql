-- Where the tasks of a queue are pushed, as JSON; NULL is a queue that workers claim from.
ALTER TABLE queues ADD COLUMN push text;

-- When the attempt is to be pushed again. The rest of what is known of its way to a worker is in `carry`.
ALTER TABLE running ADD COLUMN push_at timestamptz;
CREATE INDEX running_by_push ON running (queue_id, push_at) WHERE push_at IS NOT NULL;

-- What only the attempt of a callback worker has to tell, as JSON.
ALTER TABLE attempts ADD COLUMN callback text;
