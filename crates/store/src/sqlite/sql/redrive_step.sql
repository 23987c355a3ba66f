UPDATE redrives SET cursor = ?2, released = released + ?3, finished = ?4 WHERE redrive_id = ?1
