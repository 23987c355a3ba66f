//! The gate, sessions over files, limits, and the process itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod corpus;
mod differential;
mod gate;
mod limits;
mod mutations;
mod parquet;
mod server;
mod stores;
mod support;
mod tables;
