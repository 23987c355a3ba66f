//! The server over HTTP: the contracts, the user API, who may call what.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod attack;
mod callback;
mod contracts;
mod dags;
mod dispatch;
mod harness;
mod identity;
mod pull;
mod push;
mod runs;
mod sandboxes;
mod user;
