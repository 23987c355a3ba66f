//! The wire types of the contracts.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod callback;
mod corpus;
