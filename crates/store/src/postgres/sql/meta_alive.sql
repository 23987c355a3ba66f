UPDATE meta SET alive_at = $1, grace_until = $2
