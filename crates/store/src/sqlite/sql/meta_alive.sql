UPDATE meta SET alive_at = ?, grace_until = ?
