//! Secrets, limits and certificates that change while the server runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_auth::Secret;
use tenure_config::{Config, Watcher, changed_keys, needs_restart};
use tenure_engine::Engine;
use tenure_server::{Access, DispatchSecrets, Live, PushTargets, SharedTaskKeys};
use tenure_tls::LiveServer;
use tokio::signal::unix::{SignalKind, signal};

use crate::cmd::control_plane::{check_exposure, retention};
use crate::sandboxes::Offering;
use crate::{access, logging};

/// A change of a file is seen after this long at the latest.
const PACE: Duration = Duration::from_secs(2);

/// What the running server takes its settings from.
#[derive(Debug)]
pub struct Reloader {
    pub config: Config,
    pub access: Live<Access>,
    pub push: Live<PushTargets>,
    pub dispatch_secrets: DispatchSecrets,
    /// Where it listens, as workers on this machine see it.
    pub own_url: String,
    pub tls: Option<Arc<LiveServer>>,
    pub task_keys: Option<Arc<SharedTaskKeys>>,
    /// The token that this server made for itself, if no worker credential is configured.
    pub own_token: Option<Secret>,
    /// Where the server listens: what may be off depends on it.
    pub addresses: Vec<SocketAddr>,
    /// Calls workers, with the credentials that workers are let in with.
    pub rpc: Option<tenure_rpc::Client>,
    pub sandboxes: Option<Offering>,
    pub engine: Engine,
    /// Workers inside of this process, with tokens that no file has.
    pub inside: Vec<(String, Secret)>,
}

impl Reloader {
    /// Looks for changes until the process ends: of the files, or at SIGHUP.
    pub async fn run(mut self) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut watcher = Watcher::new(self.config.watched());
        loop {
            let told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(PACE) => false,
            };
            if watcher.changed() || told {
                self.reload().await;
                watcher.follow(self.config.watched());
            }
        }
    }

    /// All or nothing: what is wrong with the new values leaves the old ones in force.
    async fn reload(&mut self) {
        match self.try_reload().await {
            Ok(()) => metrics::counter!("tenure_config_reloads_total").increment(1),
            Err(error) => {
                metrics::counter!("tenure_config_reload_failures_total").increment(1);
                tracing::error!(
                    "the configuration could not be reloaded, the previous values stay in effect: {error:#}"
                );
            }
        }
    }

    async fn try_reload(&mut self) -> anyhow::Result<()> {
        let config = self.config.reload()?;
        let mut access = access::access(&config)?;
        check_exposure(&access, &self.addresses)?;
        self.complete(&mut access);
        access::check_rpc_tls(&config)?;
        let push = access::push_targets(&config, !access.users.enabled, Some(&self.own_url))?;
        let task_keys = match &self.task_keys {
            Some(shared) => Some((shared, access::task_keys(&config)?)),
            None => None,
        };
        match (&self.tls, config.server.tls.clone()) {
            (Some(live), Some(tls)) => {
                if live.reload_from(tls).context("server.tls")? {
                    tracing::info!("new connections use the new certificate");
                }
            }
            (None, None) => {}
            _ => tracing::warn!("turning server.tls on or off takes effect after a restart"),
        }
        if let Some((shared, keys)) = task_keys {
            shared.replace(keys).await;
        }
        if let Some(rpc) = &self.rpc {
            if rpc.reload_tls().context("worker.rpc_tls")? {
                tracing::info!("new calls to workers use the new certificate");
            }
            rpc.replace_auth(Arc::new(access.workers.clone()));
        }
        if let Some(sandboxes) = &self.sandboxes {
            sandboxes.replace(&config);
        }
        self.access.set(access);
        self.push.set(push);
        self.engine.set_retention(retention(config.retention));
        tenure_server::log_access(config.logging.access);
        if config.logging.level != self.config.logging.level {
            logging::set_level(config.logging.level);
        }
        self.dispatch_secrets.0.set(config.dispatch_secrets.clone());
        let changed = changed_keys(&self.config, &config);
        let (later, now): (Vec<_>, Vec<_>) = changed.into_iter().partition(|key| needs_restart(key));
        if !later.is_empty() {
            tracing::warn!("changed, takes effect after a restart: {}", later.join(", "));
        }
        if !now.is_empty() {
            tracing::info!("changed: {}", now.join(", "));
        }
        self.config = config;
        Ok(())
    }

    /// What no file has.
    pub fn complete(&self, access: &mut Access) {
        if !access.workers.is_configured() {
            access.workers.shared = self.own_token.clone();
        }
        access.workers.per_worker.extend(self.inside.iter().cloned());
    }
}
