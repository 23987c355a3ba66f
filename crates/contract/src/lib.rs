//! Wire types of the worker contracts and of the user API: serde, and what to suggest for a name that does not exist.
//!
//! A field is spelled here exactly as it stands on the wire, or its module says by which rule. `null` on input means absent, absent options are left
//! out on output, unknown fields are refused in requests of the user API and ignored everywhere else. JSON that Tenure only carries (payloads, results) stays raw text.

pub mod admin;
pub mod callback;
pub mod dags;
pub mod dispatch;
pub mod duration;
pub mod error;
pub mod events;
pub mod pull;
pub mod query;
pub mod run;
pub mod sandboxes;
pub mod suggest;
pub mod user;
pub mod words;
pub mod worker_plane;
pub mod worker_rpc;

mod object;
mod raw;

pub use raw::Json;

/// Sent on every answer below `/internal/worker/`.
pub const PULL_CONTRACT: &str = "pull/1";
/// Sent on every answer to a callback.
pub const CALLBACK_CONTRACT: &str = "callback/1";
/// Sent on every answer of the dispatch contract.
pub const DISPATCH_CONTRACT: &str = "dispatch/1";
/// The header that names the contract an answer belongs to.
pub const CONTRACT_HEADER: &str = "x-tenure-contract";
