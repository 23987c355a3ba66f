//! Pushed tasks under faults.
//!
//! Real control planes push tasks to workers (`worker`) and are called back by them, with a fault proxy on every connection.
//! Workers answer pushes late, with errors or not at all, forget heartbeats, go on after their lease, complete twice and
//! against their own word, and are killed and stopped. At the end `checker` holds all of it against the promises.

pub mod checker;
pub mod history;
mod run;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

pub use run::{Summary, run};
pub use worker::{PushArgs, run as run_worker};

use crate::plan::{Class, Options, Plan};

/// How long a worker that has started may be silent.
pub const TTL_MS: u64 = 2_000;

/// Open attempts of a queue.
pub const CONCURRENCY: u64 = 4;

/// An attempt that nobody has started ends after this time.
pub const DISPATCH_MS: u64 = 6_000;

/// What the control planes show to workers.
pub const SECRET: &str = "a-secret-for-chaos-pushes";

/// The queue of this worker.
pub fn queue(worker: usize) -> String {
    format!("push-{worker}")
}

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub length: Duration,
    pub classes: Vec<Class>,
    pub postgres: bool,
    pub servers: usize,
    pub workers: usize,
    /// Tasks per second.
    pub rate: f64,
    /// How long after the last fault every task must have ended.
    pub patience: Duration,
    pub binary: Option<PathBuf>,
    /// Keep the folder of the run also when all is well.
    pub keep: bool,
}

impl Settings {
    pub fn plan(&self) -> Plan {
        Plan::draw(&Options {
            seed: self.seed,
            length_ms: self.length.as_millis() as u64,
            classes: self.classes.clone(),
            servers: self.servers,
            workers: self.workers,
            queues: 1,
            postgres: self.postgres,
            redis: false,
            sandboxes: false,
            pushes: true,
            clock: false,
            power: false,
            ttl_ms: TTL_MS,
        })
    }
}
