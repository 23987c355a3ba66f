DELETE FROM redrives WHERE finished AND started_at < $1
