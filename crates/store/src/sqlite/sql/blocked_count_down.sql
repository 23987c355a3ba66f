UPDATE blocked SET waiting_on = ?2 WHERE seq = ?1
