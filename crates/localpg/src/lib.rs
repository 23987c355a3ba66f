//! A Postgres server of one's own, from the programs that are installed on this machine.
//!
//! For tests and benchmarks: the server runs in a folder that the caller gives, listens on 127.0.0.1, needs no
//! password, and is as durable as Postgres is by default. Unix only.

mod cluster;
mod pauses;
mod postmaster;
mod programs;
mod sql;

pub use cluster::{Cluster, START};
pub use pauses::Pauses;
pub use postmaster::Postmaster;
pub use programs::Programs;
pub use sql::{USER, run, send};
