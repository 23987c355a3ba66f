INSERT INTO run_edges (upstream, downstream) VALUES (?, ?)
