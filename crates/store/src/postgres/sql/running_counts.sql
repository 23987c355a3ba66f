SELECT queue_id, sum(running)::bigint FROM queue_counts WHERE queue_id = ANY($1) GROUP BY queue_id
