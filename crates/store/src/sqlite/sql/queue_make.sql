INSERT INTO queues (name, tenant, transport) VALUES (?, ?, ?) ON CONFLICT DO NOTHING
