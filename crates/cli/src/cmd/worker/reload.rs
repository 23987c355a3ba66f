//! Credentials, certificates and limits of worker RPC that change while the worker runs.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_config::{Config, Watcher, changed_keys, needs_restart};
use tenure_tls::LiveServer;
use tenure_worker::rpc::{Credentials, ExecTimes};
use tokio::signal::unix::{SignalKind, signal};

use super::node::{Common, callers};

/// A change of a file is seen after this long at the latest.
const PACE: Duration = Duration::from_secs(2);

/// What the running listener takes its settings from.
pub struct NodeReloader {
    pub config: Config,
    pub common: Common,
    pub credentials: Arc<Credentials>,
    pub tls: Option<Arc<LiveServer>>,
    pub exec: Arc<ExecTimes>,
}

impl NodeReloader {
    /// Looks for changes until the process ends: of the files, or at SIGHUP.
    pub async fn run(mut self) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return tracing::error!("changes of files are not followed: {error}"),
        };
        let mut watcher = Watcher::new(self.watched());
        loop {
            let told = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(PACE) => false,
            };
            if !watcher.changed() && !told {
                continue;
            }
            match self.reload() {
                Ok(()) => metrics::counter!("tenure_config_reloads_total").increment(1),
                Err(error) => {
                    metrics::counter!("tenure_config_reload_failures_total").increment(1);
                    tracing::error!(
                        "the configuration could not be reloaded, the previous values stay in effect: {error:#}"
                    );
                }
            }
            watcher.follow(self.watched());
        }
    }

    fn watched(&self) -> Vec<std::path::PathBuf> {
        self.config.watched().into_iter().chain(self.common.signing_key_file.clone()).collect()
    }

    /// All or nothing: what is wrong with the new values leaves the old ones in force.
    fn reload(&mut self) -> anyhow::Result<()> {
        let config = self.config.reload()?;
        let auth = callers(&config, &self.common)?;
        anyhow::ensure!(auth.can_verify_rpc(), "nothing would be left to verify callers with");
        match (&self.tls, config.worker.rpc_tls.enabled) {
            (Some(live), true) => {
                let server = config.worker.rpc_tls.server().context("worker.rpc_tls")?;
                if live.reload_from(server).context("worker.rpc_tls")? {
                    tracing::info!("new connections use the new certificate");
                }
            }
            (None, false) => {}
            _ => tracing::warn!("turning worker.rpc_tls on or off takes effect after a restart"),
        }
        self.credentials.replace(auth);
        self.exec.set(config.defaults.default_exec_timeout, config.defaults.max_exec_timeout);
        let (later, now): (Vec<_>, Vec<_>) =
            changed_keys(&self.config, &config).into_iter().partition(|key| needs_restart(key));
        if !later.is_empty() {
            tracing::warn!("changed, takes effect after a restart: {}", later.join(", "));
        }
        if !now.is_empty() {
            tracing::info!("changed: {}", now.join(", "));
        }
        self.config = config;
        Ok(())
    }
}
