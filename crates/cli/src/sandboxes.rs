//! What the configuration means for sandboxes: the settings of their manager, and calls to workers.

use std::sync::Arc;
use std::time::Duration;

use tenure_auth::WorkerAuth;
use tenure_config::{AuditCommands, Config, ConfigError, PreviewAuth, SpawnOverflow};
use tenure_engine::sandboxes::{Defaults, Overflow, SandboxSettings};
use tenure_rpc::{Client, Settings, Times};
use tenure_server::{Live, Preview, SandboxConfig, SandboxOffer};

/// What the server needs to offer sandboxes. `port` is where it listens.
pub fn config(config: &Config, auth: &WorkerAuth, port: u16, is_local: bool) -> Result<SandboxConfig, ConfigError> {
    let offer = Live::new(offer(config, port));
    Ok(SandboxConfig { offer, is_local, ..SandboxConfig::new(client(config, auth)?) })
}

/// Changes what a running server offers.
#[derive(Debug)]
pub struct Offering {
    offer: Live<SandboxOffer>,
    rpc: Client,
    port: u16,
    /// What holds until the next start.
    provider: String,
    spawn_timeout: Duration,
}

impl Offering {
    pub fn new(running: &SandboxConfig, config: &Config, port: u16) -> Self {
        Self {
            offer: running.offer.clone(),
            rpc: running.rpc.clone(),
            port,
            provider: config.providers.default.clone(),
            spawn_timeout: config.worker.spawn_timeout,
        }
    }

    /// From now on it is as this configuration says.
    pub fn replace(&self, config: &Config) {
        let mut config = config.clone();
        config.providers.default.clone_from(&self.provider);
        config.worker.spawn_timeout = self.spawn_timeout;
        self.rpc.replace_settings(rpc_settings(&config));
        self.offer.set(offer(&config, self.port));
    }
}

fn offer(config: &Config, port: u16) -> SandboxOffer {
    let preview = &config.server.preview;
    SandboxOffer {
        settings: settings(config),
        preview: Preview {
            domain: preview.domain_at(port).to_ascii_lowercase(),
            ports: preview.ports.ranges().to_vec(),
            is_open: preview.auth == PreviewAuth::None,
        },
        hashed_commands: config.audit_commands == AuditCommands::Hash,
        legacy_metrics: config.legacy_metrics,
    }
}

fn client(config: &Config, auth: &WorkerAuth) -> Result<Client, ConfigError> {
    let tls = &config.worker.rpc_tls;
    let tls = match tls.enabled {
        false => None,
        true => {
            let loaded = tls.client().load();
            Some(loaded.map_err(|error| ConfigError::Rule(format!("worker.rpc_tls: {error}")))?)
        }
    };
    Ok(Client::new(rpc_settings(config), Arc::new(auth.clone()), tls))
}

fn rpc_settings(config: &Config) -> Settings {
    Settings {
        default_exec_timeout: config.defaults.default_exec_timeout,
        max_exec_timeout: config.defaults.max_exec_timeout,
        times: Times { spawn: config.worker.spawn_timeout, ..Times::default() },
        ..Settings::default()
    }
}

fn settings(config: &Config) -> SandboxSettings {
    let defaults = &config.defaults;
    let weights = config.scheduler.weights;
    SandboxSettings {
        defaults: Defaults {
            ttl_ms: millis(defaults.ttl),
            image: defaults.image.clone(),
            provider: config.providers.default.clone(),
            memory_mb: defaults.memory_mb,
            vcpus: u32::try_from(defaults.vcpus).unwrap_or(u32::MAX),
            disk_mb: defaults.disk_size_mb,
        },
        max_ttl_ms: millis(defaults.max_ttl),
        default_exec_timeout_ms: millis(defaults.default_exec_timeout),
        max_exec_timeout_ms: millis(defaults.max_exec_timeout),
        max_sandboxes: defaults.max_sandboxes,
        max_sandboxes_per_owner: defaults.max_sandboxes_per_owner,
        pool_size: defaults.pool_size,
        pool_template: defaults.pool_template.clone().unwrap_or_default(),
        spawn_overflow: match defaults.spawn_overflow {
            SpawnOverflow::Reject => Overflow::Reject,
            SpawnOverflow::Queue => Overflow::Queue,
        },
        spawn_queue_timeout_ms: millis(defaults.spawn_queue_timeout),
        max_spawn_queue: defaults.max_spawn_queue,
        lease_ttl_ms: millis(config.leases.ttl),
        lease_max_ttl_ms: millis(config.leases.max_ttl),
        freshness_ms: millis(config.scheduler.freshness),
        weights: (weights.memory, weights.vcpus, weights.count),
        spawn_timeout_ms: millis(config.worker.spawn_timeout),
        secrets: config
            .template_secrets
            .iter()
            .map(|(name, secret)| (name.clone(), secret.reveal().to_owned()))
            .collect(),
        ..SandboxSettings::default()
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
