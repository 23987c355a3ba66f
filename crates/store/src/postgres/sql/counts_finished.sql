SELECT coalesce(sum(finished), 0)::bigint FROM queue_counts
