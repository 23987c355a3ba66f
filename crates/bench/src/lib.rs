//! Measurements that a person can repeat: a control plane under load, beside the raw limit of the same store.
//!
//! The control plane runs as a process of its own, is spoken to over HTTP as any worker would, and answers only after a
//! durable commit. The load is made in this process, on the same machine: what it costs is part of every figure.

pub mod backlog;
pub mod dag;
pub mod fleet;
pub mod heartbeat;
pub mod latency;
pub mod picture;
pub mod progress;
pub mod push;
pub mod raw;
pub mod report;
pub mod sandbox;
pub mod soak;
pub mod throughput;

mod history;
mod http;
mod load;
mod process;
mod samples;
mod stand;

pub use http::Target;
pub use load::Mode;
pub use progress::Progress;
pub use report::Report;
pub use samples::Percentiles;
pub use stand::{Place, Stand, StoreChoice};

/// A measurement under way. Boxed, so that it is compiled here, and not by the program that shows it.
pub type Measuring<'a, T> = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<T>> + 'a>>;

/// The most tasks that one exchange carries.
pub const EXCHANGE_MAX: usize = 1_000;
/// The most tasks that one submit request carries.
pub const SUBMIT_MAX: usize = 10_000;
