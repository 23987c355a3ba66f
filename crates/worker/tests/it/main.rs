//! The worker runtime against a scripted server, and its RPC listener against control planes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod rpc;
mod run;
