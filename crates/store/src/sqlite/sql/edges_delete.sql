DELETE FROM run_edges WHERE upstream = ?
