//! Tasks of `runtime: sandbox`: bundles of code that nobody vouches for, each run in a fresh sandbox.
//!
//! The worker is woken through the queue `sandbox` of the dispatch contract. It claims the task, downloads the bundle,
//! compares it with its SHA-256, unpacks it into a new sandbox and runs its entrypoint there. The code finds the task on
//! standard input and says on standard output what came of it. It has no credential but the capability token of its
//! attempt, and reaches no address but the [`gateway`](self::gateway).

mod fetch;
mod gateway;
mod run;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use tenure_bundle::Language;
use tenure_client::dispatch::Worker;
use tenure_sandbox::Provider;

use self::gateway::Gateway;
use crate::command::SandboxSettings;
use crate::config::TokenSource;
use crate::run::RunError;

/// The wake-up queue of tasks that run in sandboxes.
const QUEUE: &str = "sandbox";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between the end of a killed command and its report.
const AFTER_KILL: Duration = Duration::from_secs(2);

/// Settings of a worker that runs bundles.
#[derive(Debug, Clone)]
pub struct BundleConfig {
    /// `http://` or `https://` address of the control plane.
    pub server: String,
    /// Absent where the server lets workers in without one.
    pub token: Option<TokenSource>,
    /// Certificates in PEM that sign the server's; absent: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// A fixed worker id; absent: one of its own for every run.
    pub name: Option<String>,
    /// Tasks at a time.
    pub concurrency: usize,
    /// Makes the sandboxes.
    pub provider: Arc<dyn Provider>,
    /// Image and limits of a sandbox. `allow` is not used: what the code reaches is fixed.
    pub sandbox: SandboxSettings,
    /// Between the polite and the other signal to code that has to stop.
    pub kill_grace: Duration,
    /// On shutdown, how long tasks may go on before they are told to stop.
    pub drain_timeout: Duration,
}

/// What the tasks of a worker share.
#[derive(Debug)]
struct Site {
    http: reqwest::Client,
    server: Url,
    gateway: Gateway,
    provider: Arc<dyn Provider>,
    sandbox: SandboxSettings,
    kill_grace: Duration,
    /// Programs of the image that run bundles, as they were found.
    programs: Mutex<HashMap<Language, String>>,
}

impl Site {
    fn program(&self, language: Language) -> Option<String> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).get(&language).cloned()
    }

    fn found(&self, language: Language, program: &str) {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).insert(language, program.to_owned());
    }
}

/// Runs bundles until `shutdown` ends, then drains.
pub async fn run_bundles(config: BundleConfig, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    if !config.provider.capabilities().egress_allow_list && config.provider.name() != "process" {
        return Err(RunError::NoGateway(config.provider.name()));
    }
    let setup = |message: String| RunError::Worker(tenure_client::WorkerError::Setup(message));
    let server = Url::parse(&config.server).map_err(|error| setup(format!("`{}`: {error}", config.server)))?;
    let http = http_client(config.ca_file.as_deref()).map_err(setup)?;
    let gateway = Gateway::start(http.clone(), server.clone()).await?;
    let site = Arc::new(Site {
        http,
        server,
        gateway,
        provider: config.provider,
        sandbox: config.sandbox,
        kill_grace: config.kill_grace,
        programs: Mutex::default(),
    });
    let mut worker = Worker::new(config.server)
        .queue(QUEUE)
        .concurrency(config.concurrency)
        .drain_timeout(config.drain_timeout)
        .stop_grace(config.kill_grace + AFTER_KILL);
    let name = config.name.unwrap_or_else(own_name);
    worker = match config.token {
        Some(token) => worker.identity(name.clone(), token.for_worker(&name)),
        None => worker.worker_id(name),
    };
    if let Some(path) = config.ca_file {
        worker = worker.ca_file(path);
    }
    let worker = worker.any_operator(move |task| {
        let site = Arc::clone(&site);
        async move { site.run(&task).await }
    });
    Ok(worker.run_until(shutdown).await?)
}

fn own_name() -> String {
    let random = getrandom::u64().unwrap_or_default();
    format!("bundles-{}-{random:016x}", gethostname::gethostname().to_string_lossy())
}

/// Without redirects and without a proxy of the environment: either would carry tokens to another host.
fn http_client(ca_file: Option<&std::path::Path>) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("tenure-worker/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .connect_timeout(CONNECT_TIMEOUT);
    if let Some(path) = ca_file {
        let unreadable = |error: &dyn std::fmt::Display| format!("the CA file {}: {error}", path.display());
        let pem = std::fs::read(path).map_err(|error| unreadable(&error))?;
        let roots = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| unreadable(&error))?;
        builder = builder.tls_certs_only(roots);
    }
    builder.build().map_err(|error| format!("the HTTP client could not be set up: {error}"))
}
