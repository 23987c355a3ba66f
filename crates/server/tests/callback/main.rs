//! The callback contract over HTTP: what its workers call, with which tokens, and what they are told.
//!
//! Attempts are granted here as the dispatcher grants them, and pushed nowhere: the tests are the worker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../pull/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the pull contract")]
mod harness;

mod calls;
mod cancels;
mod faults;
mod liveness;
mod replays;
mod runs;
mod submits;
mod tokens;
mod worker;
