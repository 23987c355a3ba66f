//! This machine as a worker of the worker RPC contract: what it holds, under which leases, and for how long.
//!
//! [`Node`] is what the RPC listener calls. [`Holdings`] is its memory, on disk. Both hold without the control plane: a
//! lease that lapses freezes its sandbox, and the end of the grace destroys it.

mod adoption;
pub mod capacity;
mod clock;
mod defence;
mod error;
mod heartbeat;
mod holdings;
mod lease;
mod plane;
mod providers;
mod run;
mod runtime;
mod settings;

pub use adoption::Adoption;
pub use clock::Moment;
pub use error::NodeError;
pub use heartbeat::{BeatError, Face};
pub use holdings::{ANSWER_KEPT, Answer, Holdings, OpenError};
pub use lease::{Lease, LeaseRefusal};
pub use plane::Plane;
pub use providers::Providers;
pub use runtime::{Held, Node, Prepare, SpawnOrder, Target};
pub use settings::NodeSettings;

/// A name for a call, for the logs of both sides.
pub(crate) fn request_id() -> String {
    format!("req-{}", random_hex())
}

/// 128 random bits.
fn random_hex() -> String {
    let mut bytes = [0; 16];
    // Only names are made of it, no secrets.
    getrandom::fill(&mut bytes).unwrap_or_default();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
