UPDATE scheduled SET fair = (SELECT {value} FROM bodies b WHERE b.seq = scheduled.seq) WHERE queue_id = ?1
