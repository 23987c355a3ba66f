//! Who is calling: workers, users and admins are different principals, and none can stand in for another.
//!
//! Secrets are compared in constant time and never print.

mod api_key;
mod jwt;
mod oidc;
mod role;
mod secret;
mod task;
mod user;
mod webhook;
pub mod worker;

pub use api_key::{KeyDigest, NewApiKey, key_digest};
pub use jwt::{IssueError, KeyError, MAX_TOKEN_BYTES, TokenError};
pub use oidc::{JwkSet, OIDC_MAX_LEEWAY_S, OidcKeys, OidcUser, OidcVerifier, StaticKey};
pub use role::{Role, UserScope};
pub use secret::Secret;
pub use task::{
    Access, CAPABILITY_MAX_TTL_S, CapabilityClaims, DEFAULT_ISSUER, DatasetGrant, HS256_KID, MAX_INLINE_TOKEN_BYTES,
    S3Grant, StorageRef, TASK_TOKEN_MAX_TTL_S, TaskClaims, TaskKeys, TaskPublicKey, Verified,
};
pub use user::{ConfiguredKey, DEFAULT_TENANT, UserAuth};
pub use webhook::{SignedDelivery, WEBHOOK_WINDOW_S, WebhookSignature};
pub use worker::{Anonymous, Worker, WorkerAuth, WorkerCredential, WorkerKeys};

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
