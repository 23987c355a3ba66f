INSERT INTO run_tasks (task, run, depends_on) SELECT unnest($1::bigint[]), unnest($2::bigint[]), unnest($3::text[])
