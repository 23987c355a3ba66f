INSERT INTO events (at, facts) VALUES ($1, $2)
