//! The configuration and the inputs that fuzzing found.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod corpus;
