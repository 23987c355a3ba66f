INSERT INTO queues (name, tenant, transport) SELECT unnest($1::text[]), unnest($2::text[]), $3 ON CONFLICT DO NOTHING
