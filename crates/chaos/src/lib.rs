//! Real processes under faults, and a judge of what they did.
//!
//! A run starts control planes, a store, workers and clients with a fault proxy ([`proxy`]) on every connection
//! between them. A plan ([`plan`]) drawn from a seed says what is killed, stopped, cut, delayed, reset or struck dumb,
//! and when. Whoever asks for something writes down what it asked and what it was told ([`history`]). Workers leave
//! effects in a database of their own, guarded by the fence ([`ledger`]). At the end all heals, every task has to end,
//! and the checker ([`checker`]) holds all answers against the promises.
//!
//! The binary `tenure-chaos` is the way in.

pub mod checker;
mod clients;
mod crowd;
pub mod dags;
mod ending;
pub mod faults;
pub mod history;
mod http;
pub mod ledger;
mod nemesis;
pub mod plan;
pub mod power;
mod process;
pub mod proxy;
pub mod pushes;
mod report;
mod rng;
mod run;
pub mod sandboxes;
mod system;
mod visitor;
mod watcher;
mod worker;

pub use report::Summary;
pub use rng::Rng;
pub use run::{LIVENESS, Settings, run};
pub use worker::{WorkerArgs, run as run_worker};
