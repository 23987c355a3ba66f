//! The worker runtime behind tenure worker: supervisor, command operators, built-ins.
