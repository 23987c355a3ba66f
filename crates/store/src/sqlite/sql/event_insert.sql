INSERT INTO events (at, facts) VALUES (?, ?)
