-- name: webhook_signatures_prune
DELETE FROM webhook_signatures WHERE digest IN (
    SELECT s.digest FROM webhook_signatures s WHERE s.expires_at < ?1 ORDER BY s.expires_at LIMIT ?2)

-- name: webhook_signatures_put
-- The first name stays.
INSERT INTO webhook_signatures AS w (digest, delivery_id, expires_at) VALUES (?1, ?2, ?3)
ON CONFLICT (digest) DO UPDATE SET delivery_id = w.delivery_id
RETURNING delivery_id
