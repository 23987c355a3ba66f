//! A worker that holds sandboxes for a control plane: `tenure worker --listen`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_auth::worker::SigningKey;
use tenure_auth::{Secret, WorkerAuth};
use tenure_client::WorkerCalls;
use tenure_config::{Config, ConfigError, started_as_stacyvm};
use tenure_contract::worker_plane::Capacity;
use tenure_sandbox::{Enforcement, ProcessProvider, ProcessSettings, Provider};
use tenure_tls::LiveServer;
use tenure_worker::TokenSource;
use tenure_worker::node::{Adoption, Face, Holdings, Node, NodeSettings, Plane, Providers, capacity};
use tenure_worker::rpc::{self, Credentials, ExecTimes, Rpc, RpcSettings, StartError};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::reload::NodeReloader;
use crate::cmd::sandbox::{Callers, Name};
use crate::exit::{Exit, Stop};
use crate::times;

#[derive(Debug, clap::Args)]
pub struct NodeArgs {
    /// Serve worker RPC at this address, and hold sandboxes for the control plane [default: worker.listen_addr of the
    /// configuration]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Sandboxes")]
    listen: Option<String>,
    /// Address where the control plane reaches this worker [default: worker.advertise_url of the configuration, or the
    /// listen address]
    #[arg(long, value_name = "URL", help_heading = "Sandboxes")]
    advertise_url: Option<String>,
    /// Domain below which ports of sandboxes can be reached [default: worker.preview_domain of the configuration]
    #[arg(long, value_name = "DOMAIN", help_heading = "Sandboxes")]
    preview_domain: Option<String>,
    /// Folder with what the worker holds; one worker per folder [default: worker.data_dir of the configuration]
    #[arg(long, value_name = "DIR", help_heading = "Sandboxes")]
    data_dir: Option<PathBuf>,
    /// Time between heartbeats [default: worker.heartbeat_interval of the configuration]
    #[arg(long, value_name = "TIME", value_parser = times::duration, help_heading = "Sandboxes")]
    heartbeat_interval: Option<Duration>,
    /// Send one heartbeat and exit: 0 if the control plane accepted it
    #[arg(long, help_heading = "Sandboxes")]
    once: bool,
}

/// What a worker that holds sandboxes shares with one that pulls tasks.
pub struct Common {
    pub id: Option<String>,
    pub server: String,
    pub ca_file: Option<PathBuf>,
    pub token: Option<TokenSource>,
    /// Given with a flag: callers may show it, too.
    pub own_token: Option<Secret>,
    pub signing_key_file: Option<PathBuf>,
}

impl NodeArgs {
    /// For a worker that only this machine can call.
    pub fn on_loopback(data_dir: PathBuf) -> Self {
        Self {
            listen: Some("127.0.0.1:0".to_owned()),
            advertise_url: None,
            preview_domain: None,
            data_dir: Some(data_dir),
            heartbeat_interval: None,
            once: false,
        }
    }

    /// Whether this worker holds sandboxes at all.
    pub fn is_wanted(&self, config: &Config) -> bool {
        // Workers of StacyVM have sandboxes and no queues.
        self.once || self.listen.is_some() || config.worker.listen_addr.is_some() || started_as_stacyvm()
    }

    pub fn once(&self) -> bool {
        self.once
    }
}

/// A worker that is ready to serve.
pub struct Ready {
    node: Arc<Node>,
    face: Face,
    listener: Option<(TcpListener, Rpc)>,
    reloader: Option<NodeReloader>,
    once: bool,
}

impl Ready {
    pub async fn prepare(args: NodeArgs, common: Common, config: Config) -> anyhow::Result<Self> {
        let id = match common.id.clone() {
            Some(id) => id,
            None => hostname(),
        };
        let address = args.listen.clone().or_else(|| config.worker.listen_addr.clone());
        let auth = callers(&config, &common)?;
        if address.is_some() && !auth.can_verify_rpc() {
            return Err(Stop::usage(StartError::NoCredentials.to_string()).into());
        }
        let credentials = Arc::new(Credentials::new(auth.clone()));
        let tls = match &address {
            Some(_) => server_tls(&config)?,
            None => None,
        };
        let data_dir = args.data_dir.clone().unwrap_or_else(|| config.worker.data_dir.clone());
        let settings = NodeSettings {
            max_sandboxes: usize::try_from(config.worker.capacity.max_sandboxes).unwrap_or(usize::MAX),
            heartbeat_interval: args.heartbeat_interval.unwrap_or(config.worker.heartbeat_interval),
            lease_grace: config.worker.lease_grace,
            ..NodeSettings::default()
        };
        let holdings = Holdings::open(&data_dir, &id).map_err(|error| Stop::new(Exit::Failure, error.to_string()))?;
        let providers = providers(&config, &data_dir).await?;
        let token = common.token.as_ref().map(|token| token.for_worker(&id)).unwrap_or_default();
        let calls = WorkerCalls::new(&common.server, &id, token, common.ca_file.as_deref())?;
        let plane = Plane::new(calls, settings.call_timeout);
        let node = Node::new(holdings, Providers::new(&config.providers.default, providers), Some(plane), settings);
        if node.providers().is_empty() {
            tracing::warn!("no provider is enabled and works: this worker can create no sandboxes");
        }
        let adoption = node.adopt().await.context("the sandboxes of a former process could not be adopted")?;
        if adoption != Adoption::default() {
            tracing::info!(?adoption, "sandboxes of a former process");
        }

        let (mut rpc_url, mut listener) = (None, None);
        let settings = rpc_settings(&config, data_dir);
        let exec = Arc::clone(&settings.exec);
        if let Some(address) = &address {
            let rpc = Rpc::new(Arc::clone(&node), Arc::clone(&credentials), tls.clone(), settings)
                .map_err(|error| Stop::new(Exit::Usage, error.to_string()))?;
            let socket = TcpListener::bind(address.as_str())
                .await
                .with_context(|| format!("worker RPC cannot listen on {address}"))?;
            rpc_url =
                Some(advertised(args.advertise_url.or(config.worker.advertise_url.clone()), &socket, tls.is_some())?);
            listener = Some((socket, rpc));
        }
        let capabilities = capabilities(&node, &auth, listener.is_some());
        let capacity = capacity_of(&config, rpc_url, args.preview_domain.or(config.worker.preview_domain.clone()));
        let reloader = listener.is_some().then(|| NodeReloader { config, common, credentials, tls, exec });
        Ok(Self { node, face: Face::new(hostname(), capabilities, capacity), listener, reloader, once: args.once })
    }

    pub fn worker_id(&self) -> &str {
        self.node.worker_id()
    }

    pub fn has_providers(&self) -> bool {
        !self.node.providers().is_empty()
    }

    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<Exit> {
        if self.once {
            return match self.node.beat_alone(&self.face).await {
                Ok(()) => Ok(Exit::Ok),
                Err(error) => Err(Stop::new(Exit::Failure, error.to_string()).into()),
            };
        }
        if let Some(reloader) = self.reloader {
            tokio::spawn(reloader.run());
        }
        if let Some((listener, _)) = &self.listener {
            let address = listener.local_addr()?;
            tracing::info!(%address, worker.id = self.node.worker_id(), "worker RPC is served");
        }
        let serve = |stop: CancellationToken| async move {
            match self.listener {
                Some((listener, rpc)) => rpc::run(listener, rpc, stop.cancelled_owned()).await,
                None => {
                    stop.cancelled().await;
                    Ok(())
                }
            }
        };
        self.node.run(&self.face, serve, stop).await.context("worker RPC ended")?;
        Ok(Exit::Ok)
    }
}

fn hostname() -> String {
    nix::unistd::gethostname().map_or_else(|_| "host".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The providers that are enabled and work. Others are left out: the control plane places nothing on them.
async fn providers(config: &Config, data_dir: &Path) -> anyhow::Result<Vec<Arc<dyn Provider>>> {
    let mut loaded: Vec<Arc<dyn Provider>> = Vec::new();
    if config.providers.namespace.enabled {
        let own = data_dir.join("namespace");
        match Name::Namespace
            .open_in(config.providers.namespace.data_dir.as_deref().unwrap_or(&own), config, Callers::ControlPlane)
            .await
        {
            Ok(provider) => loaded.push(provider),
            Err(error) => tracing::error!(provider.name = "namespace", "the provider cannot work here: {error:#}"),
        }
    }
    if config.providers.process.enabled {
        // A control plane always names limits, and who enables this provider knows that it keeps none.
        let settings = ProcessSettings { data_dir: data_dir.join("process"), max_sandboxes: None, ignore_limits: true };
        match tokio::task::spawn_blocking(move || ProcessProvider::open(settings)).await? {
            Ok(provider) => loaded.push(Arc::new(provider)),
            Err(error) => tracing::error!(provider.name = "process", "the provider cannot work here: {error}"),
        }
    }
    if config.providers.docker.enabled {
        let opened = match Name::parse("docker") {
            Ok(name) => name.open_in(&data_dir.join("docker"), config, Callers::ControlPlane).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(provider) => loaded.push(provider),
            Err(error) => tracing::error!(provider.name = "docker", "the provider cannot work here: {error:#}"),
        }
    }
    Ok(loaded)
}

/// What callers of this worker are verified with: the configuration, and what flags name.
pub fn callers(config: &Config, common: &Common) -> anyhow::Result<WorkerAuth> {
    let mut auth = config.auth()?.worker;
    if let Some(token) = &common.own_token {
        auth.shared = Some(token.clone());
    }
    if let Some(path) = &common.signing_key_file {
        let key = super::secret_in(path, "--worker-signing-key-file")?;
        auth.keys.active = SigningKey::new(key.reveal());
    }
    Ok(auth)
}

/// The listener's certificate, checked.
pub fn server_tls(config: &Config) -> anyhow::Result<Option<Arc<LiveServer>>> {
    let tls = &config.worker.rpc_tls;
    if !tls.enabled {
        return Ok(None);
    }
    let wrong = |error: tenure_tls::TlsError| ConfigError::Rule(format!("worker.rpc_tls: {error}"));
    tls.check(true).map_err(wrong)?;
    Ok(Some(Arc::new(tls.server().map_err(wrong)?.load().map_err(wrong)?)))
}

fn rpc_settings(config: &Config, data_dir: PathBuf) -> RpcSettings {
    RpcSettings {
        exec: Arc::new(ExecTimes::new(config.defaults.default_exec_timeout, config.defaults.max_exec_timeout)),
        spawn_timeout: config.worker.spawn_timeout,
        drain_timeout: config.worker.shutdown_timeout,
        ..RpcSettings::new(data_dir)
    }
}

/// An address that the control plane can connect to: never the one that means all of this machine's.
fn advertised(given: Option<String>, listener: &TcpListener, has_tls: bool) -> anyhow::Result<String> {
    if let Some(url) = given {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    let scheme = if has_tls { "https" } else { "http" };
    let address = listener.local_addr()?;
    Ok(match address.ip().is_unspecified() {
        false => format!("{scheme}://{address}"),
        true => format!("{scheme}://{}:{}", hostname(), address.port()),
    })
}

fn capacity_of(config: &Config, rpc_url: Option<String>, preview_domain: Option<String>) -> Capacity {
    let own = config.worker.capacity;
    let or_all = |given: u64, all: fn() -> u64| if given == 0 { all() } else { given };
    Capacity {
        max_sandboxes: own.max_sandboxes,
        memory_mb: or_all(own.memory_mb, capacity::memory_mb),
        vcpus: or_all(own.vcpus, capacity::vcpus),
        rpc_url,
        preview_domain,
    }
}

/// What the control plane may use, beside the contract itself.
fn capabilities(node: &Node, auth: &WorkerAuth, listens: bool) -> Vec<String> {
    let any = |has: fn(&tenure_sandbox::Capabilities) -> bool| {
        node.providers().iter().any(|provider| has(provider.capabilities()))
    };
    let found = [
        ("lease_renewal", true),
        ("inventory", true),
        ("rpc_code", listens),
        ("rpc_replay", listens),
        ("stream_terminal", listens),
        ("stream_files", listens),
        ("undrain", listens),
        ("stats", listens),
        ("snapshots", listens && any(|provider| provider.snapshot.enforcement != Enforcement::None)),
        ("interactive", listens && any(|provider| provider.terminal)),
        ("proxy", listens && any(|provider| provider.ports)),
        ("token_ed25519", listens && (!auth.keys.public.is_empty() || auth.keys.private.is_some())),
        ("egress_allow_list", any(|provider| provider.egress_allow_list)),
    ];
    found.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect()
}
