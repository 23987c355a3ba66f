SELECT min(push_at) FROM running WHERE push_at IS NOT NULL
