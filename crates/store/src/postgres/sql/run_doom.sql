-- A run that has begun to go goes, whatever retention says next.
UPDATE runs SET finished_at = to_timestamp(0) WHERE seq = $1
