//! The Rust SDK against servers that each test scripts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod callback;
mod client;
mod dispatch;
mod fence;
mod queries;
mod runs;
mod sandboxes;
mod support;
mod tls;
mod token;
mod worker;
