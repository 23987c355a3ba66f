UPDATE ready SET fair = (SELECT {value} FROM bodies b WHERE b.seq = ready.seq) WHERE queue_id = ?1
