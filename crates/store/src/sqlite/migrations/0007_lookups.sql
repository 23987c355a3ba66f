-- What retention and lists look for.
CREATE INDEX runs_by_end ON runs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX runs_by_tenant ON runs (tenant, seq);
CREATE INDEX queues_by_push ON queues (queue_id) WHERE push IS NOT NULL;
