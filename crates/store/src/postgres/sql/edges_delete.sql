DELETE FROM run_edges WHERE upstream = ANY($1)
