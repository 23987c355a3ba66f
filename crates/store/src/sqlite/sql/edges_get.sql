SELECT downstream FROM run_edges WHERE upstream = ?
