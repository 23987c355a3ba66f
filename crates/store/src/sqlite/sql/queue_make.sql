INSERT INTO queues (name, tenant) VALUES (?, ?) ON CONFLICT DO NOTHING
