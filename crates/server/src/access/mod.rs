//! Who is let in, to what, and how often. The rules of all routes stand in [`rules`]; [`guard`] holds every request
//! against them before any handler sees it.

pub mod address;
pub mod caller;
pub mod guard;
pub mod limiter;
mod open_mode;
pub mod rules;
pub mod task_token;

use std::time::Duration;

use ipnet::IpNet;
use tenure_auth::{UserAuth, WorkerAuth};
use tenure_contract::admin::TenantLimits;

use crate::identity::oidc::OidcAccess;

/// Everything about access that can change while the server runs.
#[derive(Debug, Clone, Default)]
pub struct Access {
    pub workers: WorkerAuth,
    pub users: UserAuth,
    pub oidc: Option<OidcAccess>,
    /// How often a user may call.
    pub rate_limit: Option<RateLimit>,
    /// Failed authentications that an address is allowed a minute; zero for as many as it likes.
    pub failed_auth_per_minute: u32,
    /// Origins that browsers may call from; `*` for all.
    pub cors_allowed_origins: Vec<String>,
    /// Names, beside loopback ones, by which a server without keys may be called.
    pub allowed_hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Limits of tenants that have none of their own.
    pub tenant_limits: TenantLimits,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RateLimit {
    pub requests_per_minute: u32,
    pub burst: u32,
    pub key_by: KeyBy,
    /// A bucket that was not used for so long is forgotten.
    pub bucket_ttl: Duration,
    /// How often such buckets are looked for.
    pub cleanup_interval: Duration,
}

/// Whose calls are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyBy {
    Owner,
    ApiKey,
    Ip,
}
