INSERT INTO queues (name, tenant) SELECT unnest($1::text[]), unnest($2::text[]) ON CONFLICT DO NOTHING
