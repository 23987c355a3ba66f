//! Requests to addresses that others chose.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod guard;
