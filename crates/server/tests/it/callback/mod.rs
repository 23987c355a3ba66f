//! The callback contract over HTTP: what its workers call, with which tokens, and what they are told.
//!
//! Attempts are granted here as the dispatcher grants them, and pushed nowhere: the tests are the worker.

mod calls;
mod cancels;
mod faults;
mod liveness;
mod replays;
mod runs;
mod submits;
mod tokens;
pub mod worker;
