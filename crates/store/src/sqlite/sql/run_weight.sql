-- Sizes only: nothing that large is read for it.
SELECT coalesce(sum(octet_length(b.payload)), 0) + coalesce(sum(CASE WHEN f.ended = 1 THEN octet_length(f.result) END), 0)
FROM run_tasks t JOIN bodies b ON b.seq = t.task LEFT JOIN finished f ON f.seq = t.task WHERE t.run = ?
