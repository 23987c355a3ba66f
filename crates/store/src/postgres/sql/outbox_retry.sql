WITH mine AS (
    SELECT message FROM outbox
    WHERE failed_at IS NOT NULL AND ($2::bigint[] IS NULL OR message = ANY($2))
        AND ($3::text IS NULL OR queue_id = (SELECT queue_id FROM queues WHERE name = $3))
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox o SET due_at = $1, failed_at = NULL, tries = 0 FROM mine WHERE o.message = mine.message
RETURNING o.message
