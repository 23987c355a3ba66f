//! The worker runtime against a scripted server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod run;
