//! Defaults and limits of sandboxes that a control plane hands out.

use std::time::Duration;

use super::error::ConfigError;
use super::settings::Settings;

/// More sandboxes than a control plane could keep ready.
const POOL: u64 = 1000;
/// A worker renews after a third of it, and needs some tries before it ends.
const SHORTEST_LEASE: Duration = Duration::from_secs(15);

/// Defaults and limits of sandboxes. 0 in a limit means no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defaults {
    /// At most `max_ttl`.
    pub ttl: Duration,
    pub image: String,
    /// 0: the provider's own default, as for the next two.
    pub memory_mb: u64,
    pub vcpus: u64,
    pub disk_size_mb: u64,
    /// Sandboxes that are kept ready.
    pub pool_size: u64,
    pub pool_template: Option<String>,
    pub max_ttl: Duration,
    pub max_sandboxes: u64,
    pub max_sandboxes_per_owner: u64,
    pub spawn_overflow: SpawnOverflow,
    pub spawn_queue_timeout: Duration,
    pub max_spawn_queue: u64,
    /// Zero: the maximum.
    pub default_exec_timeout: Duration,
    pub max_exec_timeout: Duration,
}

/// What happens to a spawn beyond the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpawnOverflow {
    Reject,
    Queue,
}

/// Leases of workers on sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leases {
    pub ttl: Duration,
    /// At least `ttl`.
    pub max_ttl: Duration,
}

/// The choice of a worker for a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scheduler {
    /// A worker without a heartbeat for longer is stale.
    pub freshness: Duration,
    pub weights: Weights,
}

/// How much each share counts. Finite, 0 or more, and not all 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    pub memory: f64,
    pub vcpus: f64,
    pub count: f64,
}

pub(crate) fn defaults(settings: &Settings) -> Result<Defaults, ConfigError> {
    let ttl = settings.above_zero("defaults.ttl")?;
    let max_ttl = settings.duration("defaults.max_ttl")?;
    let image = settings.plain("defaults.image");
    Ok(Defaults {
        ttl: if max_ttl.is_zero() { ttl } else { ttl.min(max_ttl) },
        image: image.ok_or_else(|| settings.wrong("defaults.image", "is empty: name an image, or remove the key"))?,
        memory_mb: settings.integer("defaults.memory_mb")?,
        vcpus: settings.integer("defaults.vcpus")?,
        disk_size_mb: settings.integer("defaults.disk_size_mb")?,
        pool_size: settings.integer_in("defaults.pool_size", "a number from 0 to 1000", 0..=POOL)?,
        pool_template: settings.plain("defaults.pool_template"),
        max_ttl,
        max_sandboxes: settings.integer("defaults.max_sandboxes")?,
        max_sandboxes_per_owner: settings.integer("defaults.max_sandboxes_per_owner")?,
        spawn_overflow: match settings.choice("defaults.spawn_overflow")? {
            Some("queue") => SpawnOverflow::Queue,
            _ => SpawnOverflow::Reject,
        },
        spawn_queue_timeout: settings.above_zero("defaults.spawn_queue_timeout")?,
        max_spawn_queue: settings.integer("defaults.max_spawn_queue")?,
        default_exec_timeout: settings.duration("defaults.default_exec_timeout")?,
        max_exec_timeout: settings.duration("defaults.max_exec_timeout")?,
    })
}

pub(crate) fn leases(settings: &Settings) -> Result<Leases, ConfigError> {
    let ttl = settings.duration("leases.ttl")?;
    if ttl < SHORTEST_LEASE {
        return Err(settings.wrong("leases.ttl", "must be 15s or more"));
    }
    let max_ttl = settings.duration("leases.max_ttl")?;
    if max_ttl < ttl && settings.is_set("leases.max_ttl") {
        return Err(settings.wrong("leases.max_ttl", "must not be shorter than leases.ttl"));
    }
    let max_ttl = max_ttl.max(ttl);
    Ok(Leases { ttl, max_ttl })
}

pub(crate) fn scheduler(settings: &Settings) -> Result<Scheduler, ConfigError> {
    let weights = Weights {
        memory: settings.number("scheduler.weights.memory")?,
        vcpus: settings.number("scheduler.weights.vcpus")?,
        count: settings.number("scheduler.weights.count")?,
    };
    if weights.memory + weights.vcpus + weights.count <= 0.0 {
        return Err(settings.wrong("scheduler.weights.memory", "and the other weights are 0: set one above 0"));
    }
    Ok(Scheduler { freshness: settings.above_zero("scheduler.freshness")?, weights })
}
