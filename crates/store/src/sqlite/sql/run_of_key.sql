SELECT id, owner, fingerprint FROM runs WHERE tenant = ? AND workspace = ? AND run_key = ?
