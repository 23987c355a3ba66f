//! Group commit, timers, reaper, wake-ups and deliveries around a store.
//!
//! An [`Engine`] is a whole control plane without the network: open it on a store, submit tasks, claim and report them.
//! Any number of engines can share one Postgres; each is correct alone.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_engine::Engine;
//! let engine = Engine::open("sqlite:tenure.db").await?;
//! let now = engine.now().await?;
//! engine.shutdown().await;
//! # Ok(()) }
//! ```

mod background;
pub mod buffers;
mod claims;
mod commands;
pub mod dags;
pub mod delivery;
mod duty;
mod effects;
mod engine;
mod error;
mod events;
mod fleet;
mod lane;
mod numbers;
mod pace;
mod random;
mod replicas;
pub mod sandboxes;
mod schedules;
mod stops;
mod task_logs;
mod tenants;
mod timings;
mod waiters;

pub use claims::{ClaimWait, Handing, TaskClaim};
pub use commands::{CallbackSender, Reply};
pub use duty::{Duties, Duty};
pub use effects::Transports;
pub use engine::{Engine, EngineConfig};
pub use error::EngineError;
pub use events::{Event, EventId, Events};
pub use fleet::WorkerCall;
pub use random::{random_bits, random_seed};
pub use schedules::{FiringKey, NotSubmitted, ScheduleChange, ScheduleRefusal, Submitter};
pub use stops::Watched;
pub use task_logs::{LogOutcome, LogsRead};
pub use tenants::Tenants;
pub use tenure_store as store;
pub use tenure_transport as transport;
