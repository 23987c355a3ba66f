-- A run that has begun to go goes, whatever retention says next.
UPDATE runs SET finished_at = 0 WHERE seq = ?
