SELECT receipt FROM outbox WHERE message = ? AND receipt IS NOT NULL
