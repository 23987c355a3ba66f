//! Both stores: the same suite on each, the same answers on each, and every step failing once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod conformance;
mod equivalence;
mod file;
mod nth_failure;
mod tls;
