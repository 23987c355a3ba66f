//! A DAG under faults.
//!
//! Real control planes and workers of the dispatch contract, with a fault proxy on every connection. Users (`user`) fire the
//! source, say that data has changed, and look at cursors. Workers (`worker`) forget heartbeats, tell of what they write
//! before, at and after the end of their lease, report late and twice, and are killed and stopped. At the end everything
//! must have run once for every generation (`checker`).

pub mod checker;
mod ending;
pub mod history;
mod report;
mod run;
mod user;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

pub use report::Summary;
pub use run::run;
pub use worker::{DispatchArgs, run as run_worker};

use crate::plan::{Class, Options, Plan};

/// A lease of every task.
pub const TTL_MS: u64 = 2_000;

pub const DAG: &str = "chaos";

/// `import` writes a range and a row each time. The last output of a job is for what holders tell of before they end:
/// nobody reads it.
pub const YAML: &str = "name: chaos
defaults: { max_attempts: 1000, heartbeat_timeout_seconds: 2 }
jobs:
  - { name: import, activation: source, runtime: worker, operator: import, outputs: 3, source: { kind: manual } }
  - { name: decode, activation: reactive, runtime: worker, operator: decode, outputs: 2, execution_strategy: PerPartition,
      update_strategy: replace, inputs: [{ from: { job: import, output: 0 } }] }
  - { name: count, activation: reactive, runtime: worker, operator: count, outputs: 0, execution_strategy: PerPartition,
      inputs: [{ from: { job: decode, output: 0 } }] }
  - { name: tail, activation: reactive, runtime: worker, operator: tail, outputs: 2, execution_strategy: PerUpdate,
      update_strategy: replace, inputs: [{ from: { job: import, output: 1 } }] }
  - { name: sum, activation: reactive, runtime: worker, operator: sum, outputs: 0, execution_strategy: PerUpdate,
      inputs: [{ from: { job: tail, output: 0 } }] }
";

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    pub seed: u64,
    pub length: Duration,
    pub classes: Vec<Class>,
    pub postgres: bool,
    pub redis: bool,
    pub servers: usize,
    pub workers: usize,
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
            redis: self.redis,
            sandboxes: false,
            pushes: false,
            clock: false,
            power: false,
            ttl_ms: TTL_MS,
        })
    }
}
