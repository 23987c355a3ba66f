UPDATE running SET fair = (SELECT {value} FROM bodies b WHERE b.seq = running.seq) WHERE queue_id = ?1
