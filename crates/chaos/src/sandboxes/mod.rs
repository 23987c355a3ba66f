//! Sandboxes of the control plane under faults.
//!
//! Real control planes, a store and workers of the provider `process`, with a fault proxy on every connection. Sessions
//! (`session`) create sandboxes with and without idempotency keys, use them and destroy or forget them. Beside them the disks
//! of the workers are looked at (`fleet`), so that what is checked does not depend on what the system says about itself.

mod api;
pub mod checker;
mod ending;
pub mod fleet;
pub mod history;
mod report;
mod run;
mod session;

use std::path::PathBuf;
use std::time::Duration;

pub use report::Summary;
pub use run::run;

use crate::plan::{Class, Options, Plan};

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub length: Duration,
    pub classes: Vec<Class>,
    pub postgres: bool,
    pub servers: usize,
    pub workers: usize,
    pub sessions: usize,
    pub binary: Option<PathBuf>,
    /// Keep the folder of the run also when all is well.
    pub keep: bool,
}

impl Settings {
    pub fn plan(&self) -> Plan {
        // In longer runs workers stand still for longer than a lease.
        let ttl_ms = if self.length < Duration::from_secs(120) { 3_000 } else { 8_000 };
        Plan::draw(&Options {
            seed: self.seed,
            length_ms: self.length.as_millis() as u64,
            classes: self.classes.clone(),
            servers: self.servers,
            workers: self.workers,
            queues: 0,
            postgres: self.postgres,
            redis: false,
            sandboxes: true,
            pushes: false,
            clock: false,
            power: false,
            ttl_ms,
        })
    }
}
