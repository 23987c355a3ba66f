-- Rows are numbered in about the order of their times: only the oldest are looked at.
DELETE FROM operation_audit WHERE at < ?1 AND id IN (SELECT id FROM operation_audit ORDER BY id LIMIT ?2)
