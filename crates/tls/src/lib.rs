//! TLS: certificates that are checked when they are loaded and re-read without a restart.
