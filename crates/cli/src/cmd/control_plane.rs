//! A control plane in this process: what `serve` and `up` have in common.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tenure_engine::store::{Retention, SHARED_WORKER_TOKEN, StoreError};
use tenure_engine::{Engine, EngineConfig};
use tenure_server::{Access, Listeners, Live, ServerConfig, SharedTaskKeys};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cmd::compat;
use crate::cmd::worker::local::{self, LOCAL};
use crate::cmd::worker::node::Ready;
use crate::dispatch::S3Address;
use crate::exit::{Exit, Stop};
use crate::reload::Reloader;
use crate::{access, dispatch, query, sandboxes, store_id, token, transports};
use tenure_auth::{Anonymous, Secret};
use tenure_config::{Config, Flags, StoreUrl};

/// How long a Postgres may take to come up.
const STORE_WAIT: Duration = Duration::from_secs(30);
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Where the configuration and the store are.
#[derive(Debug, clap::Args)]
pub struct PlaceArgs {
    /// Configuration file [env: TENURE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder for the store and the worker token [default: ~/.tenure]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Store: sqlite:PATH or postgres://… [default: tenure.db in the data folder]
    #[arg(long, value_name = "URL", env = "TENURE_STORE", hide_env_values = true, value_parser = StoreParser)]
    store: Option<StoreUrl>,
}

/// Reads the address of a store. What is wrong with it is said without it: it may hold a password.
#[derive(Debug, Clone, Copy)]
pub struct StoreParser;

impl clap::builder::TypedValueParser for StoreParser {
    type Value = StoreUrl;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<StoreUrl, clap::Error> {
        let parsed =
            value.to_str().ok_or("the address of the store is not valid UTF-8".to_owned()).and_then(StoreUrl::parse);
        parsed.map_err(|problem| {
            let message = format!("invalid value for --store or TENURE_STORE: {problem}\n");
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, message).with_cmd(command)
        })
    }
}

/// Where to listen.
#[derive(Debug, clap::Args)]
pub struct ListenArgs {
    /// Address to listen on; port 0 picks a free port [default: 127.0.0.1:7423]
    #[arg(long, value_name = "ADDR", value_parser = listen_address)]
    listen: Option<(String, u16)>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

impl PlaceArgs {
    pub fn load(self) -> anyhow::Result<Config> {
        let flags = Flags { config: self.config, data: self.data, store: self.store, listen: None };
        Ok(Config::load(flags)?)
    }
}

impl ListenArgs {
    pub fn load(self) -> anyhow::Result<Config> {
        let PlaceArgs { config, data, store } = self.place;
        Ok(Config::load(Flags { config, data, store, listen: self.listen })?)
    }
}

/// `HOST:PORT`, with brackets around an IPv6 address.
fn listen_address(text: &str) -> Result<(String, u16), String> {
    let wrong = || "write it as 127.0.0.1:7423, localhost:0 or [::1]:7423".to_owned();
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    if host.is_empty() {
        return Err(wrong());
    }
    Ok((host.to_owned(), port.parse().map_err(|_| wrong())?))
}

/// A control plane that is ready to run.
pub struct ControlPlane {
    pub listener: TcpListener,
    internal: Option<TcpListener>,
    /// For the S3 endpoint alone.
    s3: Option<TcpListener>,
    pub engine: Engine,
    pub server: ServerConfig,
    reloader: Reloader,
    /// The worker `local`.
    local: Option<Ready>,
}

impl ControlPlane {
    /// Checks who would be let in and with which certificates, opens the store, then the listener.
    pub async fn prepare(config: Config, wants_local: bool) -> anyhow::Result<Self> {
        let wants_local = wants_local || config.worker.local;
        let addresses = resolve(&config.server.host, config.server.port).await?;
        let mut access = access::access(&config)?;
        check_exposure(&access, &addresses)?;
        let internal = internal_addresses(&config, &access).await?;
        compat::announce(&config);
        if config.has_idle_keys() {
            tracing::warn!("API keys are set but auth.enabled is false: calls without a key are accepted");
        }
        access::check_rpc_tls(&config)?;
        let tls = access::tls(&config)?;
        let task_keys = access::task_keys(&config)?;
        // What is wrong with certificates shows before the store is opened.
        access::push_targets(&config, !access.users.enabled, None)?;
        // With a Postgres, a task key and a worker credential of its own a server needs no folder.
        if !access.workers.is_configured() || config.store.path().is_some_and(|path| path.starts_with(&config.data)) {
            token::make_data_folder(&config.data)?;
        }
        let own_token = if access.workers.is_configured() { None } else { Some(own_token(&config)?) };
        let dev_mode = !access.users.enabled;
        let engine_config = transports::into_engine(&config, engine_config(&config)).await?;
        let engine = open_store(&config.store_url(), engine_config).await?;
        if config.store_url().is_postgres() {
            store_id::check(&engine, &config.data).await?;
        }
        let own_token = match own_token {
            Some(own) if config.store_url().is_postgres() => Some(shared_token(&engine, &config, own).await?),
            own => own,
        };
        let listener = listen(&place_of(&config), &addresses, "--listen", &engine).await?;
        let internal = match internal {
            Some((place, addresses)) => Some(listen(&place, &addresses, "dispatch.internal_listen", &engine).await?),
            None => None,
        };
        if let Some(internal) = &internal {
            tracing::info!("the dispatch contract listens on {}", url_of(internal, tls.is_some())?);
        }
        let s3_listener = match &config.credentials.s3_listen {
            Some(place) => {
                let addresses = addresses_of("dispatch.s3.listen", place).await?;
                Some(listen(place, &addresses, "dispatch.s3.listen", &engine).await?)
            }
            None => None,
        };
        let s3_address = s3_address(&listener, internal.as_ref(), s3_listener.as_ref(), tls.is_some())?;
        if s3_listener.is_some() {
            tracing::info!("the S3 endpoint listens on {}", s3_address.url);
        }
        let (dispatch, s3) = dispatch::config(&config, &s3_address).await?;
        let task_keys = Arc::new(SharedTaskKeys::new(engine.clone(), task_keys));
        let own_url = url_of(&listener, tls.is_some())?;
        let push = Live::new(access::push_targets(&config, dev_mode, Some(&own_url))?);
        let live = Live::default();
        let port = listener.local_addr()?.port();
        let sandboxes = sandboxes::config(&config, &access.workers, port, wants_local)?;
        let rpc = Some(sandboxes.rpc.clone());
        let offering = Some(sandboxes::Offering::new(&sandboxes, &config, port));
        let server = ServerConfig {
            access: live.clone(),
            tls: tls.clone(),
            task_keys: Some(Arc::clone(&task_keys)),
            outbound: Some(access::outbound(&config, dev_mode)?),
            transports: transports::of_queues(&config.transport),
            push: Some(push.clone()),
            sandboxes: Some(sandboxes),
            query: query::config(&config)?,
            dispatch,
            s3,
            max_connections: config.server.max_connections,
            max_connections_per_address: config.server.max_connections_per_address,
            write_timeout: config.server.write_timeout,
            request_memory_bytes: config.server.request_memory_bytes,
            ..ServerConfig::default()
        };
        let task_keys = Some(task_keys);
        tenure_server::log_access(config.logging.access);
        let reloader = Reloader {
            dispatch_secrets: server.dispatch.secrets.clone(),
            config,
            access: live.clone(),
            push,
            own_url,
            tls,
            task_keys,
            own_token,
            addresses,
            rpc,
            sandboxes: offering,
            engine: engine.clone(),
            inside: Vec::new(),
        };
        reloader.complete(&mut access);
        live.set(access);
        let mut control_plane = Self { listener, internal, s3: s3_listener, engine, server, reloader, local: None };
        if wants_local {
            control_plane.prepare_local().await?;
        } else {
            control_plane.admitted();
        }
        Ok(control_plane)
    }

    /// The worker `local` holds sandboxes in this process, if a provider works here.
    async fn prepare_local(&mut self) -> anyhow::Result<()> {
        if self.server.tls.is_some() {
            let hint = "set worker.local: false, and run `tenure worker --listen` beside it";
            return Err(Stop::usage("worker.local needs a server without TLS, but server.tls is set")
                .hint(hint)
                .into());
        }
        let secret = Secret::random();
        let ready = local::prepare(&self.reloader.config, self.own_address()?, &secret).await?;
        if ready.is_none() {
            tracing::warn!("this machine can hold no sandboxes: no provider works here");
        }
        self.admit_inside(LOCAL.to_owned(), secret);
        self.local = ready;
        Ok(())
    }

    /// Whether the worker `local` runs here.
    pub fn has_local(&self) -> bool {
        self.local.is_some()
    }

    /// Where workers inside this process reach the server. An unspecified address cannot be connected to.
    pub fn own_address(&self) -> anyhow::Result<String> {
        let mut address = self.listener.local_addr()?;
        if address.ip().is_unspecified() {
            let loopback = if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
            address.set_ip(loopback);
        }
        Ok(format!("http://{address}"))
    }

    /// Lets calls to workers use the credentials that workers are let in with.
    fn admitted(&self) {
        if let Some(rpc) = &self.reloader.rpc {
            rpc.replace_auth(Arc::new(self.server.access.get().workers.clone()));
        }
    }

    /// Lets in a worker of this process, whatever the configuration will say.
    pub fn admit_inside(&mut self, worker: String, token: Secret) {
        self.reloader.inside.push((worker, token));
        self.server.access.update(|access| self.reloader.complete(access));
        self.admitted();
    }

    /// Where it listens, as `http://ADDR:PORT`.
    pub fn url(&self) -> anyhow::Result<String> {
        url_of(&self.listener, self.server.tls.is_some())
    }

    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
        let reloading = tokio::spawn(self.reloader.run());
        let engine = self.engine.clone();
        let shutdown = async move {
            tokio::select! {
                () = shutdown => {}
                () = engine.stopped() => {}
            }
        };
        let engine = self.engine.clone();
        let (local_stop, server_stop) = (CancellationToken::new(), CancellationToken::new());
        // The worker says goodbye to a server that still listens.
        let ending = async {
            shutdown.await;
            local_stop.cancel();
        };
        let local = async {
            let ended = match self.local {
                Some(local) => local.run(local_stop.clone()).await.map(drop),
                None => {
                    local_stop.cancelled().await;
                    Ok(())
                }
            };
            server_stop.cancel();
            ended
        };
        let stopped = server_stop.clone().cancelled_owned();
        let serving = async {
            let listeners = Listeners { public: self.listener, internal: self.internal, s3: self.s3 };
            let served = tenure_server::run(listeners, self.engine, self.server, stopped).await;
            local_stop.cancel();
            served
        };
        let (served, local) = tokio::select! {
            both = async { tokio::join!(serving, local) } => both,
            () = async { ending.await; std::future::pending::<()>().await } => unreachable!("it does not end"),
        };
        reloading.abort();
        served.context("the server failed")?;
        local.context("the worker `local` failed")?;
        match engine.left_behind() {
            Some(error) => Err(Stop::new(Exit::Failure, error.to_string()).into()),
            None => Ok(()),
        }
    }
}

fn url_of(listener: &TcpListener, tls: bool) -> anyhow::Result<String> {
    let scheme = if tls { "https" } else { "http" };
    Ok(format!("{scheme}://{}", listener.local_addr()?))
}

fn place_of(config: &Config) -> String {
    format!("{}:{}", config.server.host, config.server.port)
}

/// Where the S3 endpoint is: on its own listener, or where the dispatch contract is.
fn s3_address(
    public: &TcpListener,
    internal: Option<&TcpListener>,
    own: Option<&TcpListener>,
    tls: bool,
) -> anyhow::Result<S3Address> {
    let scheme = if tls { "https" } else { "http" };
    let mut address = own.or(internal).unwrap_or(public).local_addr()?;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    Ok(S3Address { url: format!("{scheme}://{address}"), at_host: own.is_none().then_some(scheme) })
}

async fn addresses_of(setting: &str, place: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host(place).await;
    let wrong = |why: String| Stop::usage(format!("{setting}: `{place}` {why}"));
    Ok(found.map_err(|error| wrong(format!("is not an address: {error}")))?.collect())
}

/// The addresses of the listener for the dispatch contract alone. Other than loopback addresses need a worker credential.
async fn internal_addresses(config: &Config, access: &Access) -> anyhow::Result<Option<(String, Vec<SocketAddr>)>> {
    let Some(place) = config.internal_listen.clone() else { return Ok(None) };
    let found = tokio::net::lookup_host(&place).await;
    let wrong = |why: String| Stop::usage(format!("dispatch.internal_listen: `{place}` {why}"));
    let addresses: Vec<SocketAddr> = found.map_err(|error| wrong(format!("is not an address: {error}")))?.collect();
    let exposed = addresses.iter().any(|address| !address.ip().to_canonical().is_loopback());
    if exposed && (access.workers.anonymous == Anonymous::Everyone || !access.workers.is_configured()) {
        let hint = format!("set {}=FILE", Config::how_to_set("auth.worker_token_file"));
        let problem = "is open to others, but workers need no credential of the configuration".to_owned();
        return Err(wrong(problem).hint(hint).into());
    }
    Ok(Some((place, addresses)))
}

async fn listen(place: &str, addresses: &[SocketAddr], setting: &str, engine: &Engine) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(addresses).await {
        Ok(listener) => Ok(listener),
        Err(error) => {
            engine.shutdown().await;
            let hint = format!("another process may be listening there; choose another address with {setting}");
            let stop = Stop::new(Exit::Failure, format!("cannot listen on {place}: {error}"));
            Err(stop.hint(hint).into())
        }
    }
}

fn engine_config(config: &Config) -> EngineConfig {
    let unless_zero = |kept: Duration| (!kept.is_zero()).then_some(kept);
    EngineConfig {
        retention: retention(config.retention),
        admin_audit_retention: unless_zero(config.auth.admin_audit_retention),
        audit_retention: unless_zero(config.audit_retention),
        max_deliveries_in_flight: config.push.max_in_flight,
        ..EngineConfig::default()
    }
}

pub fn retention(asked: tenure_config::Retention) -> Retention {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Retention {
        finished_ms: millis(asked.finished),
        dead_letter_ms: millis(asked.dead_letters),
        finished_count: asked.max_finished,
        events_ms: millis(asked.events),
        logs_ms: millis(asked.task_logs),
    }
}

async fn resolve(host: &str, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let wrong = |why: &str| Stop::usage(format!("server.host: `{host}` {why}"));
    let found = tokio::net::lookup_host((host, port)).await;
    let addresses: Vec<_> = found.map_err(|error| wrong(&format!("is not an address: {error}")))?.collect();
    if addresses.is_empty() { Err(wrong("has no address").into()) } else { Ok(addresses) }
}

/// A server that others can reach must know who they are.
pub fn check_exposure(access: &Access, addresses: &[SocketAddr]) -> Result<(), Stop> {
    let Some(address) = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback()) else {
        return Ok(());
    };
    let refuse = |what: &str, key: &str, value: &str| {
        Err(Stop::usage(format!("refusing to listen on {address}: {what}"))
            .hint(format!("set {}={value}, or listen on 127.0.0.1", Config::how_to_set(key))))
    };
    if !access.users.enabled {
        return refuse("without auth.enabled anyone could use the API as an admin", "auth.enabled", "true");
    }
    if access.workers.anonymous == Anonymous::Everyone {
        return refuse("with auth.anonymous_workers anyone could take tasks", "auth.anonymous_workers", "false");
    }
    if !access.workers.is_configured() {
        return refuse("no worker credential is set", "auth.worker_token_file", "FILE");
    }
    Ok(())
}

/// The token of the data folder, made at the first start. Its path is said, its content never.
fn own_token(config: &Config) -> anyhow::Result<Secret> {
    let (secret, new) = token::read_or_make(&config.data)?;
    let path = token::path_in(&config.data);
    let path_shown = path.display();
    if new {
        tracing::warn!("no worker credential is configured: created a token in {path_shown}");
    } else {
        tracing::info!("workers need the token in {path_shown}");
        if token::is_exposed(&path)? {
            tracing::warn!("other users can read {path_shown}: `chmod 600` it, or remove it to get a new one");
        }
    }
    Ok(secret)
}

/// Control planes on one store accept the same workers: the token that the first one made. It is put into the data folder of
/// each, where workers on the same machine find it.
async fn shared_token(engine: &Engine, config: &Config, own: Secret) -> anyhow::Result<Secret> {
    let shared = engine.identity().shared_secret(SHARED_WORKER_TOKEN, own.reveal()).await;
    let shared = shared.context("the worker token could not be shared with other control planes")?;
    if shared == own.reveal() {
        return Ok(own);
    }
    let shared = Secret::new(&shared).context("the worker token in the store is empty")?;
    token::replace(&config.data, &shared)?;
    let path = token::path_in(&config.data);
    tracing::warn!("{} now has the worker token of the other control planes on this store", path.display());
    Ok(shared)
}

async fn open_store(store: &StoreUrl, config: EngineConfig) -> anyhow::Result<Engine> {
    let started = Instant::now();
    loop {
        let error = match Engine::open_with(store.reveal(), config.clone()).await {
            Ok(engine) => return Ok(engine),
            Err(error) => error,
        };
        let may_come_up = store.is_postgres() && error.is_transient();
        let left = STORE_WAIT.saturating_sub(started.elapsed());
        if !may_come_up || left.is_zero() {
            return Err(explain(error, store));
        }
        tracing::warn!("{}; trying again for {} s", error.chain(), left.as_secs() + 1);
        tokio::time::sleep(STORE_PAUSE).await;
    }
}

fn explain(error: StoreError, store: &StoreUrl) -> anyhow::Error {
    match &error {
        // These say what to do.
        StoreError::NewerSchema { .. }
        | StoreError::Address { .. }
        | StoreError::InUse { .. }
        | StoreError::Damaged { .. }
        | StoreError::Replaced { .. } => error.into(),
        _ => anyhow::Error::new(error).context(format!("the store {store} could not be opened")),
    }
}

#[cfg(test)]
mod tests {
    use tenure_auth::{Secret, UserAuth, WorkerAuth};

    use super::*;

    #[test]
    fn listen_addresses_are_read() {
        assert_eq!(listen_address("127.0.0.1:0"), Ok(("127.0.0.1".into(), 0)));
        assert_eq!(listen_address("[::1]:7423"), Ok(("::1".into(), 7423)));
        assert_eq!(listen_address("localhost:80"), Ok(("localhost".into(), 80)));
        for text in ["", "7423", ":7423", "host:", "host:x", "::1:7423", "[::1:7423", "host:70000"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_a_server_that_knows_everybody_listens_to_the_network() {
        let exposed: SocketAddr = "0.0.0.0:1".parse().unwrap();
        let check = |user_enabled, shared, anonymous, address: SocketAddr| {
            let user = UserAuth { enabled: user_enabled, api_key: Secret::new("k"), ..UserAuth::default() };
            let shared = if shared { Secret::new("t") } else { None };
            let worker = WorkerAuth { shared, anonymous, ..WorkerAuth::default() };
            check_exposure(&Access { users: user, workers: worker, ..Access::default() }, &[address])
                .map_err(|stop| stop.to_string())
        };
        let networks = || Anonymous::From(vec!["10.1.0.0/16".parse().unwrap()]);
        assert!(check(false, true, Anonymous::Nobody, exposed).unwrap_err().contains("auth.enabled"));
        assert!(check(false, true, networks(), exposed).unwrap_err().contains("auth.enabled"));
        assert!(check(true, false, Anonymous::Nobody, exposed).unwrap_err().contains("no worker credential"));
        assert!(check(true, true, Anonymous::Everyone, exposed).unwrap_err().contains("auth.anonymous_workers"));
        assert_eq!(check(true, true, Anonymous::Nobody, exposed), Ok(()));
        assert_eq!(check(true, false, networks(), exposed), Ok(()));
        for loopback in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(check(false, false, Anonymous::Everyone, loopback.parse().unwrap()), Ok(()));
        }
    }
}
