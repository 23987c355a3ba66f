UPDATE runs SET finished_at = $2, cancel_reason = $3, open = $4, succeeded = $5, failed = $6, skipped = $7, canceled = $8
WHERE seq = $1
