use std::time::Duration;

use super::error::ConfigError;
use super::settings::Settings;

/// How long ended work is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    pub finished: Duration,
    pub dead_letters: Duration,
    pub events: Duration,
    pub task_logs: Duration,
    /// Maximum number of ended tasks, whatever their age.
    pub max_finished: u64,
}

/// Rate limits of the user API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    pub enabled: bool,
    pub requests_per_minute: u64,
    pub burst: u64,
    pub key_by: RateKey,
    pub bucket_ttl: Duration,
    pub cleanup_interval: Duration,
    /// 0: without limit. Holds also when `enabled` is false.
    pub failed_auth_per_minute: u64,
}

/// What counts as one caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateKey {
    Owner,
    ApiKey,
    Ip,
}

/// What the audit log keeps of a command that ran in a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditCommands {
    Full,
    /// The SHA-256 digest.
    Hash,
}

/// What each tenant may use; 0 is without limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenants {
    pub max_ready: u64,
    pub max_running: u64,
    pub submits_per_second: u64,
    pub max_payload_bytes: u64,
}

pub(crate) fn retention(settings: &Settings) -> Result<Retention, ConfigError> {
    Ok(Retention {
        finished: settings.duration("retention.finished")?,
        dead_letters: settings.duration("retention.dead_letters")?,
        events: settings.duration("retention.events")?,
        task_logs: settings.duration("retention.task_logs")?,
        max_finished: settings.integer("retention.max_finished")?,
    })
}

pub(crate) fn rate_limit(settings: &Settings) -> Result<RateLimit, ConfigError> {
    let key_by = match settings.choice("rate_limit.key_by")? {
        Some("api_key") => RateKey::ApiKey,
        Some("ip") => RateKey::Ip,
        _ => RateKey::Owner,
    };
    Ok(RateLimit {
        enabled: settings.flag("rate_limit.enabled")?,
        requests_per_minute: settings.integer("rate_limit.requests_per_minute")?,
        burst: settings.integer("rate_limit.burst")?,
        key_by,
        bucket_ttl: settings.above_zero("rate_limit.bucket_ttl")?,
        cleanup_interval: settings.above_zero("rate_limit.cleanup_interval")?,
        failed_auth_per_minute: settings.integer("rate_limit.failed_auth_per_minute")?,
    })
}

pub(crate) fn tenants(settings: &Settings) -> Result<Tenants, ConfigError> {
    Ok(Tenants {
        max_ready: settings.integer("tenants.max_ready")?,
        max_running: settings.integer("tenants.max_running")?,
        submits_per_second: settings.integer("tenants.submits_per_second")?,
        max_payload_bytes: settings.size("tenants.max_payload_bytes")?,
    })
}

pub(crate) fn audit_commands(settings: &Settings) -> Result<AuditCommands, ConfigError> {
    Ok(match settings.choice("audit.commands")? {
        Some("hash") => AuditCommands::Hash,
        _ => AuditCommands::Full,
    })
}
