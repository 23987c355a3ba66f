//! The worker runtime against scripted servers, and its RPC listener against control planes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod node;
mod rpc;
mod run;
