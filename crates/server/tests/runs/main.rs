//! Runs over HTTP, executed by pull workers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../pull/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the pull contract")]
mod harness;

mod crash;
mod ends;
mod kit;
mod large;
mod outputs;
mod rerun;
mod submits;
mod watching;
