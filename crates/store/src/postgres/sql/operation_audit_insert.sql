INSERT INTO operation_audit (at, actor, action, resource, status, detail, tenant, request_id)
SELECT $1::timestamptz, unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::text[]), unnest($6::text[]),
    unnest($7::text[]), unnest($8::text[])
