SELECT min(at) FROM scheduled WHERE at > ?
