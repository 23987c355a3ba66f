SELECT length(CAST(result AS BLOB)) FROM finished WHERE seq = ? AND result IS NOT NULL
