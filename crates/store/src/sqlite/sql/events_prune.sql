-- Batches are numbered in about the order of their times: only the oldest are looked at.
DELETE FROM events WHERE at < ?1 AND batch IN (SELECT batch FROM events ORDER BY batch LIMIT ?2)
