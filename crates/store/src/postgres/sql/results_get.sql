SELECT seq, result FROM finished WHERE seq = ANY($1)
