//! Tasks that are pushed to a worker over HTTP, on SQLite and on Postgres.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../pull/harness.rs"]
#[allow(dead_code, unused_macros, reason = "shared with the tests of the pull contract")]
mod harness;

mod answers;
mod circuits;
mod crashes;
mod guard;
mod kit;
mod many;
mod queues;
mod slots;
