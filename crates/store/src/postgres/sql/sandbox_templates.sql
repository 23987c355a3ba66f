-- name: sandbox_template_delete
DELETE FROM sandbox_templates WHERE tenant = $1 AND name = $2 RETURNING 1

-- name: sandbox_template_get
SELECT tenant, name, version, body, created_at, updated_at FROM sandbox_templates WHERE tenant = $1 AND name = $2

-- name: sandbox_template_insert
INSERT INTO sandbox_templates (tenant, name, version, body, created_at, updated_at) VALUES ($1, $2, 1, $3, $4, $4)
ON CONFLICT (tenant, name) DO NOTHING RETURNING tenant, name, version, body, created_at, updated_at

-- name: sandbox_template_update
UPDATE sandbox_templates SET body = $3, version = version + 1, updated_at = $4 WHERE tenant = $1 AND name = $2
RETURNING tenant, name, version, body, created_at, updated_at

-- name: sandbox_templates_list
SELECT tenant, name, version, body, created_at, updated_at FROM sandbox_templates
WHERE $1::text IS NULL OR tenant = $1 ORDER BY name, tenant LIMIT $2
