//! The `tenure` binary as people, scripts and workers use it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod commands;
mod direct;
mod security;
mod survival;
mod tour;
mod workers;
