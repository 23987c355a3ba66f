//! The engine as a library: no network, one address.

#![allow(clippy::unwrap_used, reason = "tests")]

mod buffers;
mod builtin;
mod claimers;
mod dags;
mod delivery;
mod harness;
mod pressure;
mod pruning;
mod replicas;
mod restart;
mod run;
mod sandboxes;
mod schedules;
mod staging;
mod wakes;
mod watching;
