SELECT message, receipt FROM outbox WHERE message = ANY($1) AND receipt IS NOT NULL
