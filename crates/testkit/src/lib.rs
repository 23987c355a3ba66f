//! Helpers for Tenure's own tests; no shipped crate depends on it.
//!
//! Tests of a control plane are only worth something when they meet the real things: a real
//! Postgres that can be killed, the real `tenure` binary that can be killed, a client that
//! misbehaves on the wire. This crate starts and ends those, and waits for conditions instead of
//! sleeping. A helper that cannot do its work panics with the reason: the test has failed, and
//! there is nothing for it to handle.
//!
//! Unix only.

mod blocked;
mod child;
mod moto;
mod ports;
mod postgres;
mod process;
mod python;
mod redis;
mod scratch;
mod skip;
mod tcp;
mod wait;

pub use blocked::wait_until_blocked;
pub use child::{Child, Output};
pub use moto::Moto;
pub use nix::sys::signal::Signal;
pub use ports::Port;
pub use postgres::{Database, Postgres, PrivatePostgres};
pub use process::Tenure;
pub use python::python_packages;
pub use redis::Redis;
pub use skip::skip;
pub use tcp::{Answer, RawClient};
pub use wait::{Condition, wait_until, wait_until_blocking};
