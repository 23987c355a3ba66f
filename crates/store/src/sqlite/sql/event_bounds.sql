SELECT coalesce(min(batch), 0), coalesce(max(batch), 0) FROM events
