UPDATE blocked SET fair = (SELECT {value} FROM bodies b WHERE b.seq = blocked.seq) WHERE queue_id = ?1
