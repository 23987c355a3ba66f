SELECT scheduled, ready, running, finished, dead_lettered FROM queue_counts WHERE queue_id = ?
