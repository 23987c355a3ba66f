//! Who is calling: workers, users and admins are different principals, and none can stand in for another.
//!
//! Secrets are compared in constant time and never print.

mod secret;
mod user;
pub mod worker;

pub use secret::Secret;
pub use user::{DEFAULT_TENANT, User, UserAuth};
pub use worker::{Worker, WorkerAuth, WorkerCredential, WorkerKeys};

/// Why a caller was not let in. Neither says more than the caller knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("no credential was sent")]
    Missing,
    #[error("the credential is not valid")]
    Invalid,
    #[error("no credential of this kind is configured")]
    NotConfigured,
}
