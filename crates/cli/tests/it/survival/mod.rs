//! Real processes, killed and stopped: what was acknowledged stays, and what lost its lease changes nothing.

#![allow(clippy::print_stderr, reason = "what was measured is shown")]

mod clock;
mod disk;
mod failover;
mod fleet;
mod kit;
mod postgres;
mod replicas;
mod rolling;
mod sandboxes;
mod schema;
mod server;
mod worker;
