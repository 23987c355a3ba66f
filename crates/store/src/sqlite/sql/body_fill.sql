UPDATE bodies SET payload = ?2 WHERE seq = ?1
