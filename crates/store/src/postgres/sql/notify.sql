SELECT pg_notify('tenure', $1)
