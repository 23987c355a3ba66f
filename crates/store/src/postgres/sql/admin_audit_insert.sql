INSERT INTO admin_audit (at, actor, method, path, status, duration_ms, request_id, remote_addr, user_agent, tenant)
SELECT $1::timestamptz, unnest($2::text[]), unnest($3::text[]), unnest($4::text[]), unnest($5::int[]), unnest($6::bigint[]),
    unnest($7::text[]), unnest($8::text[]), unnest($9::text[]), unnest($10::text[])
