SELECT coalesce(sum(finished), 0) FROM queue_counts
