use std::io;
use std::sync::Arc;
use std::time::Duration;

use tenure_client::{Worker, WorkerError};
use tenure_outbound::{Outbound, OutboundError, Policy, Trust};
use tokio::sync::OnceCell;

use crate::command::{OrphanGuard, Pools};
use crate::config::{TokenSource, WorkerConfig};

/// Between the end of a killed command and its report.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// What operators need beside the task.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) http: Outbound,
    pub(crate) kill_grace: Duration,
    /// Everything that a task started is dead when its lease is over.
    pub(crate) strict: bool,
    orphans: OnceCell<OrphanGuard>,
}

/// Why a worker ended, or could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error(transparent)]
    Worker(#[from] WorkerError),
    #[error("the HTTP client could not be set up")]
    Http(#[from] OutboundError),
    /// Commands need `sh`.
    #[error("`sh` could not be started")]
    Shell(#[from] io::Error),
    #[error("operators ask for sandboxes, and there is no provider for them")]
    NoSandboxes,
    #[error("a strict worker runs everything in sandboxes, and the operator `{0}` does not")]
    NotInSandbox(String),
    #[error(
        "a strict worker needs sandboxes that end by themselves when a lease is over; those of the provider `{0}` do not"
    )]
    NoDeadlines(&'static str),
    #[error("bundles need sandboxes that reach the control plane and nothing else; those of the provider `{0}` do not")]
    NoGateway(&'static str),
}

impl Tools {
    pub(crate) fn new(outbound: Policy, kill_grace: Duration, strict: bool) -> Result<Self, RunError> {
        Ok(Self { http: Outbound::new(outbound, &Trust::System)?, kill_grace, strict, orphans: OnceCell::new() })
    }

    /// Started when first asked for: a worker without commands needs no shell.
    pub(crate) async fn orphans(&self) -> io::Result<&OrphanGuard> {
        self.orphans.get_or_try_init(|| async { OrphanGuard::start() }).await
    }
}

/// Works until `shutdown` ends, then drains.
pub async fn run(config: WorkerConfig, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    if config.strict {
        check_strict(&config)?;
    }
    let tools = Arc::new(Tools::new(config.outbound, config.kill_grace, config.strict)?);
    if config.operators.have_commands() {
        // Better now than with the first task.
        tools.orphans().await?;
    }
    let mut pools = Pools::default();
    let mut worker = Worker::new(config.server)
        .queues(config.queues)
        .concurrency(config.concurrency)
        .drain_timeout(config.drain_timeout)
        .stop_grace(config.kill_grace + AFTER_KILL)
        .outage_tolerance(config.outage_tolerance)
        .wake_by(config.wake_by);
    if config.strict {
        worker = worker.kills_on_expiry();
    }
    worker = match config.token {
        None => worker,
        Some(TokenSource::Text(token)) => worker.token(token),
        Some(TokenSource::File(path)) => worker.token_file(path),
        Some(TokenSource::Bootstrap { key_file, token_ttl }) => worker.bootstrap_key_file(key_file, token_ttl),
        Some(source @ (TokenSource::AdminKey { .. } | TokenSource::AdminKeyFile { .. })) => {
            worker.credential(source.for_worker(config.name.as_deref().unwrap_or_default()))
        }
        Some(source @ (TokenSource::SigningKey(_) | TokenSource::SigningKeyFile(_))) => match &config.name {
            Some(name) => worker.credential(source.for_worker(name)),
            None => return Err(WorkerError::Setup("a signing key needs a worker id".to_owned()).into()),
        },
    };
    if let Some(path) = config.ca_file {
        worker = worker.ca_file(path);
    }
    if let Some(name) = config.name {
        worker = worker.name(name);
    }
    for (name, operator) in config.operators.into_iter() {
        let pool = match (operator.sandbox(), &config.sandboxes) {
            (None, _) => None,
            (Some(settings), Some(sandboxes)) => Some(pools.pool(settings, sandboxes)),
            (Some(_), None) => return Err(RunError::NoSandboxes),
        };
        let tools = Arc::clone(&tools);
        worker = worker.operator(name, move |task| {
            let (operator, pool, tools) = (operator.clone(), pool.clone(), Arc::clone(&tools));
            async move { operator.run(pool.as_deref(), &tools, &task).await }
        });
    }
    pools.fill();
    let ended = worker.run_until(shutdown).await;
    pools.close().await;
    Ok(ended?)
}

/// Whether the promise of a strict worker can be kept.
fn check_strict(config: &WorkerConfig) -> Result<(), RunError> {
    if let Some(name) = config.operators.outside() {
        return Err(RunError::NotInSandbox(name.to_owned()));
    }
    let provider = &config.sandboxes.as_ref().ok_or(RunError::NoSandboxes)?.provider;
    if provider.holds_deadlines() { Ok(()) } else { Err(RunError::NoDeadlines(provider.name())) }
}
