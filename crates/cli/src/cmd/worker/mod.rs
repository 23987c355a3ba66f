//! `tenure worker`

mod fleet;
pub mod local;
pub mod node;
mod reload;
mod sandbox;
mod token;
mod transport;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tenure_auth::Secret;
use tenure_worker::{BundleConfig, Exporter, Operators, TokenSource, WorkerConfig};
use tokio_util::sync::CancellationToken;

use super::sandbox::Private;
use crate::exit::{Exit, Stop};
use crate::{access, logging, signals, times, token as local_token};
use tenure_config::{Config, Flags};

const DETAILS: &str = "\
Built-in operators and their payloads:
  echo   any value, returned as the result
  sleep  {\"ms\": 500}
  fail   {\"code\": \"X\", \"message\": \"why\", \"retryable\": true, \"times\": 2}, each optional
  http   {\"url\": \"https://…\", \"method\": \"POST\", \"body\": {}, \"headers\": {}, \"timeout_ms\": 30000}
         only with --operator http; it reaches what `outbound` in the configuration allows

A command runs in an empty folder of its own, so programs need their full path unless they are in PATH. It gets the payload on \
stdin, and TENURE_TASK_ID, TENURE_ATTEMPT and TENURE_FENCE in its environment. The last line it prints is the result: JSON if it is valid JSON, otherwise a string. With --sandbox it \
runs in a sandbox of its own, in /workspace, without the variables of this process; `tenure sandbox check` shows what is \
enforced.

On SIGTERM or SIGINT the worker takes no more tasks, lets running tasks finish for the time of --drain, and \
reports. A second signal stops at once.";

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = DETAILS)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Address of the server [default: worker.control_plane_url of the configuration, or http://localhost:7423]
    #[arg(long, visible_alias = "control-plane", value_name = "URL", env = "TENURE_SERVER", hide_env_values = true)]
    server: Option<String>,
    /// CA certificates (PEM) for verifying the server [default: the system's]
    #[arg(long, value_name = "FILE", env = "TENURE_CA_FILE", hide_env_values = true)]
    ca_file: Option<PathBuf>,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    wakes: transport::TransportArgs,
    /// Worker id [default: worker.id of the configuration, or a new id for each process]. A new process takes over from an old one with the same name
    #[arg(long, visible_alias = "id", value_name = "NAME")]
    name: Option<String>,
    /// File with the worker token [env: TENURE_WORKER_TOKEN, TENURE_WORKER_TOKEN_FILE]
    /// [default: worker-token in the data folder]
    #[arg(long, visible_alias = "worker-token-file", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with the bootstrap key of this worker; the server issues renewable tokens for it. --token-file takes
    /// precedence [env: TENURE_BOOTSTRAP_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    bootstrap_key_file: Option<PathBuf>,
    /// Key of an admin; the server issues renewable tokens for it. Only in the profile `stacyvm`: a bootstrap key can do
    /// less
    #[arg(long, value_name = "KEY", hide = true, conflicts_with = "bootstrap_admin_key_file")]
    bootstrap_admin_key: Option<String>,
    #[arg(long, value_name = "FILE", hide = true)]
    bootstrap_admin_key_file: Option<PathBuf>,
    /// Worker token; a file is safer, because others can see the arguments of a process
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    worker_token: Option<String>,
    /// File with the key that signs worker tokens: the worker signs its own, and verifies those of its callers
    #[arg(long, value_name = "FILE")]
    worker_signing_key_file: Option<PathBuf>,
    /// Lifetime of each token issued for the bootstrap key, up to 15m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = times::duration)]
    bootstrap_token_ttl: Duration,
    /// Configuration file, for `logging`, `auth.worker_token` and `worker.operators` [env: TENURE_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder with the worker token [default: ~/.tenure]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    #[command(flatten)]
    node: node::NodeArgs,
    /// Also stop when standard input ends, so that the worker does not outlive the program that started it
    #[arg(long)]
    until_eof: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create, inspect, verify and revoke signed worker tokens, and manage their keys
    Token(token::Args),
    /// List workers: those that take tasks, those that call back, those that hold sandboxes
    #[command(visible_alias = "ls")]
    List(fleet::ListArgs),
    /// Show a worker and what it holds
    Show(fleet::ShowArgs),
    /// Give a worker no new tasks and sandboxes; it keeps what it has
    Drain(fleet::DrainArgs),
    /// Give a drained worker work again
    Undrain(fleet::UndrainArgs),
}

/// What a worker does, wherever it runs.
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    /// Queue to take tasks from; repeatable, earlier queues take precedence
    #[arg(long = "queue", value_name = "NAME", default_value = "default")]
    pub queues: Vec<String>,
    /// Maximum number of tasks running at once [default: number of CPUs]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub concurrency: Option<NonZeroUsize>,
    /// Run tasks of an operator with a shell command; repeatable. `worker.operators` in the
    /// configuration file does the same
    #[arg(long = "operator", value_name = "NAME=COMMAND")]
    pub operators: Vec<String>,
    /// Run each command in a fresh sandbox of this image; without a name, of `host`, which has the programs of this
    /// machine [default: worker.sandbox.image of the configuration]
    #[arg(
        long,
        value_name = "IMAGE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "host",
        help_heading = "Sandboxes"
    )]
    pub sandbox: Option<String>,
    /// Limits of those sandboxes, such as 'memory=256m cpus=1 pids=64 disk=1g timeout=30s allow=example.com
    /// mount=/srv/data:/data:ro' [default: worker.sandbox.limits of the configuration]
    #[arg(long, value_name = "LIMITS", help_heading = "Sandboxes")]
    pub sandbox_limits: Option<String>,
    /// Also take tasks from strict queues: every task runs in a sandbox that ends with its lease, also if this process
    /// is gone. Needs --sandbox; built-in operators are off, and an outage of the control plane ends tasks
    #[arg(long, help_heading = "Sandboxes")]
    pub strict: bool,
    /// Also run bundles: tasks of DAGs with `runtime: sandbox`, each in a fresh sandbox with the image and limits above
    #[arg(long, help_heading = "Sandboxes")]
    pub bundles: bool,
    /// Time between SIGTERM and SIGKILL for a command that must stop
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = times::duration)]
    pub grace: Duration,
    /// How long tasks may keep running after the worker is told to stop
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::duration)]
    pub drain: Duration,
}

impl WorkArgs {
    /// Operators of the configuration file first, then those of the flags: a flag wins.
    pub async fn config(self, server: String, config: &Config) -> anyhow::Result<Work> {
        let mut operators = if self.strict { Operators::new() } else { Operators::new().with_built_ins() };
        for (name, command) in config.operators() {
            operators
                .add_command(name, command)
                .map_err(|error| config.wrong_operator(format!("is wrong: {error}")))?;
        }
        for text in &self.operators {
            operators.add(text).map_err(|error| {
                Stop::usage(format!("--operator: {error}"))
                    .hint("for example --operator extract='/opt/etl/extract.sh --fast'")
            })?;
        }
        let common = sandbox::common(self.sandbox.clone(), self.sandbox_limits.as_deref(), config)?;
        sandbox::apply(&mut operators, self.sandbox, self.sandbox_limits.as_deref(), self.bundles, config)?;
        if let Some((name, program)) = operators.misplaced_program() {
            let message = format!(
                "the operator `{name}` runs `{program}`, but each command runs in an empty folder of its own, where it is not found"
            );
            let full = std::path::absolute(program).unwrap_or_else(|_| program.into());
            return Err(Stop::usage(message).hint(format!("write the full path: {}", full.display())).into());
        }
        let (sandboxes, private) = if operators.need_sandboxes() || self.bundles {
            let (sandboxes, private) = sandbox::open(config).await?;
            (Some(sandboxes), Some(private))
        } else {
            (None, None)
        };
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let bundles = sandboxes.as_ref().filter(|_| self.bundles).map(|sandboxes| BundleConfig {
            server: server.clone(),
            token: None,
            ca_file: None,
            name: None,
            concurrency: self.concurrency.map_or_else(cpus, NonZeroUsize::get),
            provider: Arc::clone(&sandboxes.provider),
            sandbox: common,
            kill_grace: self.grace,
            drain_timeout: self.drain,
        });
        let worker = WorkerConfig {
            sandboxes,
            strict: self.strict,
            queues: self.queues,
            concurrency: self.concurrency.map_or_else(cpus, NonZeroUsize::get),
            operators,
            kill_grace: self.grace,
            drain_timeout: self.drain,
            outbound: access::outbound_policy(config, false),
            ..WorkerConfig::new(server)
        };
        Ok(Work { worker, bundles, private })
    }
}

/// What the flags of a worker come to.
pub struct Work {
    pub worker: WorkerConfig,
    /// The second worker of the process, for tasks of DAGs. It is the same one to the server.
    pub bundles: Option<BundleConfig>,
    /// Makes the sandboxes, if there are any, and has to be kept until the workers have ended.
    pub private: Option<Private>,
}

impl Work {
    /// The second worker is known by what the first one is known by.
    pub fn bundles(&mut self) -> Option<BundleConfig> {
        let mut bundles = self.bundles.take()?;
        let WorkerConfig { server, token, ca_file, name, .. } = &self.worker;
        bundles.server.clone_from(server);
        bundles.token.clone_from(token);
        bundles.ca_file.clone_from(ca_file);
        bundles.name.clone_from(name);
        Some(bundles)
    }
}

pub async fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        None => {}
        Some(Command::Token(args)) => return token::run(args).await,
        Some(Command::List(args)) => return fleet::list(args).await,
        Some(Command::Show(args)) => return fleet::show(args).await,
        Some(Command::Drain(args)) => return fleet::drain(args).await,
        Some(Command::Undrain(args)) => return fleet::undrain(args).await,
    }
    let config = Config::load(Flags { config: args.config, data: args.data, ..Flags::default() })?;
    logging::start(config.logging)?;
    let server = args.server.unwrap_or_else(|| config.worker.control_plane_url.clone());
    let mut work = args.work.config(server, &config).await?;
    let worker = &mut work.worker;
    worker.name = args.name.or_else(|| config.worker.id.clone());
    let flags = TokenFlags {
        token_file: args.token_file,
        bootstrap_key_file: args.bootstrap_key_file,
        admin: admin_key(args.bootstrap_admin_key, args.bootstrap_admin_key_file, &config)?,
        token_ttl: args.bootstrap_token_ttl,
        token: args.worker_token.clone(),
        signing_key_file: args.worker_signing_key_file.clone(),
        worker_id: worker.name.clone(),
    };
    worker.token = token_source(flags, &config)?;
    let needs_name = matches!(
        worker.token,
        Some(TokenSource::Bootstrap { .. } | TokenSource::SigningKey(_) | TokenSource::SigningKeyFile(_))
    );
    let holds_sandboxes = args.node.is_wanted(&config);
    if needs_name && worker.name.is_none() && !holds_sandboxes {
        return Err(Stop::usage("a bootstrap key or a signing key needs a worker id")
            .hint("use --name ID, or set worker.id in the configuration")
            .into());
    }
    worker.ca_file = args.ca_file;
    worker.wake_by = args.wakes.wake_by(worker.name.as_deref(), &config).await?;
    let token = worker.token.clone();
    let stop = signals::stop_on_signal()?;
    signals::outlive_hangup()?;
    if args.until_eof {
        stop_at_end_of_input(stop.clone());
    }
    serve_metrics(&config, stop.clone()).await?;
    let bundles = work.bundles();
    let Work { mut worker, private: _sandboxes, .. } = work;
    if !holds_sandboxes {
        let Some(bundles) = bundles else { return pull(worker, token.as_ref(), &config.data, stop).await };
        // Whichever ends ends the other.
        let both = stop.child_token();
        let pulling = async { ending(&both, pull(worker, token.as_ref(), &config.data, both.clone()).await) };
        let running = async { ending(&both, run_bundles(bundles, token.as_ref(), &config.data, both.clone()).await) };
        let (pulled, ran) = tokio::join!(pulling, running);
        return pulled.and(ran);
    }
    if bundles.is_some() {
        let hint = "run two workers: one with --bundles, one with --listen";
        return Err(Stop::usage("--bundles and --listen are for two workers").hint(hint).into());
    }
    let common = node::Common {
        id: worker.name.clone(),
        server: worker.server.clone(),
        ca_file: worker.ca_file.clone(),
        token: worker.token.clone(),
        own_token: args.worker_token.as_deref().and_then(Secret::new),
        signing_key_file: args.worker_signing_key_file,
    };
    let (data, pulls) = (
        config.data.clone(),
        (worker.operators.have_commands() || worker.operators.need_sandboxes()) && !args.node.once(),
    );
    let ready = node::Ready::prepare(args.node, common, config).await?;
    if !pulls {
        return ready.run(stop).await;
    }
    worker.name.get_or_insert_with(|| ready.worker_id().to_owned());
    // Whichever ends ends the other.
    let both = stop.child_token();
    let pulling = async { ending(&both, pull(worker, token.as_ref(), &data, both.clone()).await) };
    let serving = async { ending(&both, ready.run(both.clone()).await) };
    let (pulled, served) = tokio::join!(pulling, serving);
    pulled.and(served)
}

/// Ends the other one of two.
fn ending<T>(both: &CancellationToken, ended: T) -> T {
    both.cancel();
    ended
}

async fn run_bundles(
    bundles: BundleConfig,
    token: Option<&TokenSource>,
    data: &Path,
    stop: CancellationToken,
) -> anyhow::Result<Exit> {
    tracing::info!("worker: runs bundles of DAGs in sandboxes of the image {}", bundles.sandbox.image);
    let ended = tenure_worker::run_bundles(bundles, stop.cancelled_owned()).await;
    ended.map_err(|error| refusal_explained(error, token, data))?;
    Ok(Exit::Ok)
}

/// Where the configuration asks for it.
async fn serve_metrics(config: &Config, stop: CancellationToken) -> anyhow::Result<()> {
    let Some(address) = &config.worker.metrics_addr else { return Ok(()) };
    let exporter = Exporter::bind(address).await?;
    tracing::info!(address = %exporter.local_addr()?, "metrics are served");
    tokio::spawn(exporter.run(stop.cancelled_owned()));
    Ok(())
}

async fn pull(
    worker: WorkerConfig,
    token: Option<&TokenSource>,
    data: &Path,
    stop: CancellationToken,
) -> anyhow::Result<Exit> {
    describe(&worker);
    let ended = tenure_worker::run(worker, stop.cancelled_owned()).await;
    ended.map_err(|error| refusal_explained(error, token, data))?;
    Ok(Exit::Ok)
}

fn describe(worker: &WorkerConfig) {
    tracing::info!(
        "worker: {} at a time from {}; woken by {:?}; operators {}; server {}",
        worker.concurrency,
        worker.queues.join(", "),
        worker.wake_by,
        worker.operators.names().collect::<Vec<_>>().join(", "),
        worker.server
    );
}

fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "must be a whole number, at least 1".to_owned())
}

struct TokenFlags {
    token_file: Option<PathBuf>,
    bootstrap_key_file: Option<PathBuf>,
    admin: Option<AdminKey>,
    token_ttl: Duration,
    token: Option<String>,
    signing_key_file: Option<PathBuf>,
    worker_id: Option<String>,
}

/// A key of an admin that a worker gets its tokens with.
enum AdminKey {
    Text(Secret),
    File(PathBuf),
}

/// Accepted in the profile `stacyvm` only: a worker should not hold a key that can do everything.
fn admin_key(key: Option<String>, file: Option<PathBuf>, config: &Config) -> anyhow::Result<Option<AdminKey>> {
    let flagged = key.is_some() || file.is_some();
    if config.compat.is_none() {
        return if flagged {
            Err(Stop::usage("--bootstrap-admin-key works in the profile `stacyvm` only")
                .hint("give the worker a bootstrap key: --bootstrap-key-file FILE, and auth.worker_bootstrap_keys")
                .into())
        } else {
            Ok(None)
        };
    }
    if let Some(path) = file {
        secret_in(&path, "--bootstrap-admin-key-file")?;
        return Ok(Some(AdminKey::File(path)));
    }
    let key = key.or_else(|| std::env::var("STACYVM_WORKER_BOOTSTRAP_ADMIN_KEY").ok());
    Ok(key.as_deref().and_then(Secret::new).map(AdminKey::Text))
}

/// A secret that a flag names the file of.
fn secret_in(path: &Path, flag: &str) -> anyhow::Result<Secret> {
    let wrong = |problem: String| Stop::usage(format!("{flag} names {}, which {problem}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    Ok(Secret::new(&text).ok_or_else(|| wrong("is empty".to_owned()))?)
}

/// A flag, a variable, the configuration, the token that a server on this machine made; the first that is there. Of
/// the flags, and of the variables, a token file takes precedence over a bootstrap key, that over a token, and that over
/// a key to sign tokens with.
fn token_source(flags: TokenFlags, config: &Config) -> anyhow::Result<Option<TokenSource>> {
    let bootstrap = |key_file| TokenSource::Bootstrap { key_file, token_ttl: Some(flags.token_ttl) };
    if let Some(path) = flags.token_file {
        secret_in(&path, "--token-file")?;
        return Ok(Some(TokenSource::File(path)));
    }
    if let Some(path) = flags.bootstrap_key_file {
        secret_in(&path, "--bootstrap-key-file")?;
        return Ok(Some(bootstrap(path)));
    }
    if let Some(admin) = flags.admin {
        let token_ttl = Some(flags.token_ttl);
        return Ok(Some(match admin {
            AdminKey::Text(key) => TokenSource::AdminKey { key, token_ttl },
            AdminKey::File(key_file) => TokenSource::AdminKeyFile { key_file, token_ttl },
        }));
    }
    if let Some(token) = flags.token {
        return Ok(Some(TokenSource::Text(token)));
    }
    if let Some(path) = flags.signing_key_file {
        secret_in(&path, "--worker-signing-key-file")?;
        return Ok(Some(TokenSource::SigningKeyFile(path)));
    }
    let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
    match (variable("TENURE_WORKER_TOKEN"), variable("TENURE_WORKER_TOKEN_FILE")) {
        (Some(_), Some(_)) => {
            return Err(Stop::usage("TENURE_WORKER_TOKEN and TENURE_WORKER_TOKEN_FILE are both set: keep one").into());
        }
        (None, Some(path)) => return Ok(Some(TokenSource::File(path.into()))),
        (token, None) => {
            let key_file = variable("TENURE_BOOTSTRAP_KEY_FILE").map(|path| bootstrap(path.into()));
            if let Some(source) = key_file.or(token.map(TokenSource::Text)) {
                return Ok(Some(source));
            }
        }
    }
    let own = flags.worker_id.as_ref().and_then(|id| config.auth.worker.tokens.get(id));
    if let Some(secret) = own.cloned().or(config.worker_token()?) {
        return Ok(Some(TokenSource::Text(secret.reveal().to_owned())));
    }
    if let Some(key) = &config.auth.worker.signing_key {
        return Ok(Some(match config.worker_signing_key_file() {
            Some(path) => TokenSource::SigningKeyFile(path),
            None => TokenSource::SigningKey(key.clone()),
        }));
    }
    let path = local_token::path_in(&config.data);
    Ok(path.is_file().then_some(TokenSource::File(path)))
}

fn refusal_explained(error: tenure_worker::RunError, token: Option<&TokenSource>, data: &Path) -> anyhow::Error {
    use tenure_client::WorkerError::{Refused, Superseded};
    use tenure_worker::RunError::Worker;
    let hint = match &error {
        Worker(Refused { status: 401 | 403, .. })
            if matches!(token, Some(TokenSource::AdminKey { .. } | TokenSource::AdminKeyFile { .. })) =>
        {
            "the server does not accept this key as one of an admin"
        }
        Worker(Refused { status: 401, .. }) if matches!(token, Some(TokenSource::Bootstrap { .. })) => {
            "the server rejected this bootstrap key for this worker id, or the token issued for it"
        }
        Worker(Refused { status: 401, .. }) if token.is_some() => {
            "the server does not accept this token; use another with --token-file"
        }
        Worker(Refused { status: 401, .. }) => {
            let path = local_token::path_in(data);
            return Stop::new(Exit::Refused, error.to_string())
                .hint(format!("there is no {}; name the worker token with --token-file", path.display()))
                .into();
        }
        Worker(Superseded { .. }) => "give each worker its own name, or omit --name",
        _ => return anyhow::Error::new(error).context("the worker failed"),
    };
    Stop::new(Exit::Refused, error.to_string()).hint(hint).into()
}

/// A thread of its own: reading standard input cannot be called off.
pub fn stop_at_end_of_input(stop: CancellationToken) {
    std::thread::spawn(move || {
        let read = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        if let Err(error) = read.context("standard input could not be read") {
            tracing::warn!("{error:#}: taken as its end");
        }
        stop.cancel();
    });
}
