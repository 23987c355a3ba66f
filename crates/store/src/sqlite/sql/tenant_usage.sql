SELECT count(*) FILTER (WHERE p.place = 1), count(*) FILTER (WHERE p.place = 2), count(*) FILTER (WHERE p.place = 3),
       coalesce(sum(octet_length(b.payload)), 0)
FROM (SELECT seq, 1 AS place FROM ready UNION ALL SELECT seq, 2 FROM scheduled UNION ALL SELECT seq, 3 FROM running
      UNION ALL SELECT seq, 2 FROM blocked) p
JOIN bodies b ON b.seq = p.seq WHERE b.tenant = ?
