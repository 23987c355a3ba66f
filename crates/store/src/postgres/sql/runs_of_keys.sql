SELECT r.id, r.owner, r.fingerprint, r.tenant, r.workspace, r.run_key
FROM unnest($1::text[], $2::text[], $3::text[]) AS v (tenant, workspace, key)
JOIN runs r ON r.tenant = v.tenant AND r.workspace = v.workspace AND r.run_key = v.key
