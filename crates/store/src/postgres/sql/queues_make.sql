INSERT INTO queues (name) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING
