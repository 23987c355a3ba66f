SELECT cursor FROM redrives WHERE redrive_id = $1 FOR UPDATE
