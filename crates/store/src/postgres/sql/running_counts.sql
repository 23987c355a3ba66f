SELECT queue_id, count(*) FROM running WHERE queue_id = ANY($1) GROUP BY queue_id
