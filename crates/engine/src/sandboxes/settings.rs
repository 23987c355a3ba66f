use std::collections::BTreeMap;
use std::fmt;

use tenure_core::sandbox::placement::{Caps, Rules};
use tenure_core::sandbox::template::Defaults;
use tenure_core::time::DurationMs;

/// What to do with a spawn for which there is no room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Overflow {
    #[default]
    Reject,
    Queue,
}

/// How sandboxes are managed. It can be replaced while the manager runs.
#[derive(Clone, PartialEq)]
pub struct SandboxSettings {
    /// What a request gets that does not say otherwise.
    pub defaults: Defaults,
    /// 0 is without a bound, here and below.
    pub max_ttl_ms: DurationMs,
    pub default_exec_timeout_ms: DurationMs,
    pub max_exec_timeout_ms: DurationMs,
    pub max_sandboxes: u64,
    pub max_sandboxes_per_owner: u64,
    pub max_sandboxes_per_tenant: u64,
    /// How many warm sandboxes the template `pool_template` of the tenant `default` gets if it does not say.
    pub pool_size: u64,
    pub pool_template: String,
    pub spawn_overflow: Overflow,
    pub spawn_queue_timeout_ms: DurationMs,
    pub max_spawn_queue: u64,
    pub lease_ttl_ms: DurationMs,
    pub lease_max_ttl_ms: DurationMs,
    /// A heartbeat older than this makes a worker stale.
    pub freshness_ms: DurationMs,
    /// Memory, vcpus and count.
    pub weights: (f64, f64, f64),
    pub spawn_timeout_ms: DurationMs,
    /// Values of secrets that templates name: `NAME` for the tenant `default`, `TENANT/NAME` for others.
    pub secrets: BTreeMap<String, String>,
    /// How many bytes of snapshots a tenant may have.
    pub max_snapshot_bytes: u64,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            defaults: Defaults::default(),
            max_ttl_ms: 24 * 3_600_000,
            default_exec_timeout_ms: 0,
            max_exec_timeout_ms: 600_000,
            max_sandboxes: 0,
            max_sandboxes_per_owner: 0,
            max_sandboxes_per_tenant: 0,
            pool_size: 0,
            pool_template: String::new(),
            spawn_overflow: Overflow::Reject,
            spawn_queue_timeout_ms: 30_000,
            max_spawn_queue: 100,
            lease_ttl_ms: 60_000,
            lease_max_ttl_ms: 300_000,
            freshness_ms: 120_000,
            weights: (0.5, 0.3, 0.2),
            spawn_timeout_ms: 120_000,
            secrets: BTreeMap::new(),
            max_snapshot_bytes: 10 << 30,
        }
    }
}

impl fmt::Debug for SandboxSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the values of secrets.
        f.debug_struct("SandboxSettings")
            .field("defaults", &self.defaults)
            .field("max_sandboxes", &self.max_sandboxes)
            .field("spawn_overflow", &self.spawn_overflow)
            .finish_non_exhaustive()
    }
}

impl SandboxSettings {
    /// The value of a secret that a template of this tenant names. A name never leads to a secret of another tenant.
    pub(super) fn secret_of(&self, tenant: &str, name: &str) -> Option<&str> {
        if name.contains('/') {
            return None;
        }
        let found = match tenant {
            "default" => self.secrets.get(name),
            _ => self.secrets.get(&format!("{tenant}/{name}")),
        };
        found.map(String::as_str)
    }

    pub(super) fn rules(&self) -> Rules {
        let (memory, vcpus, count) = self.weights;
        Rules { freshness_ms: self.freshness_ms, memory, vcpus, count, callable: None }
    }

    pub(super) fn caps(&self) -> Caps {
        Caps {
            total: self.max_sandboxes,
            per_owner: self.max_sandboxes_per_owner,
            per_tenant: self.max_sandboxes_per_tenant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_names_its_own_secrets_only() {
        let secrets = [("token", "of default"), ("acme/token", "of acme")];
        let secrets = secrets.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let settings = SandboxSettings { secrets, ..SandboxSettings::default() };
        assert_eq!(settings.secret_of("default", "token"), Some("of default"));
        assert_eq!(settings.secret_of("acme", "token"), Some("of acme"));
        for (tenant, name) in
            [("default", "acme/token"), ("other", "token"), ("acme", "acme/token"), ("acme", "../token")]
        {
            assert_eq!(settings.secret_of(tenant, name), None, "{tenant} {name}");
        }
    }
}
