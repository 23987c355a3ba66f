use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tenure_auth::worker::{Audience, MintRequest, SigningKey};
use tenure_auth::{Secret, WorkerKeys};
use tenure_client::{WakeBy, WorkerToken};
use tenure_outbound::Policy;

use crate::command::Sandboxes;
use crate::operators::Operators;

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// `http://` or `https://` address of the control plane.
    pub server: String,
    /// Absent where the server lets workers in without one.
    pub token: Option<TokenSource>,
    /// Certificates in PEM that sign the server's; absent: those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// A fixed worker id; absent: one of its own for every run.
    pub name: Option<String>,
    /// In order of preference.
    pub queues: Vec<String>,
    /// Tasks at a time.
    pub concurrency: usize,
    pub operators: Operators,
    /// For operators that run in sandboxes.
    pub sandboxes: Option<Sandboxes>,
    /// Between the polite and the other signal to a command that has to stop.
    pub kill_grace: Duration,
    /// On shutdown, how long tasks may go on before they are told to stop.
    pub drain_timeout: Duration,
    /// See [`tenure_client::Worker::outage_tolerance`].
    pub outage_tolerance: Duration,
    /// Promises that everything a task started is dead when its lease is over, so that strict queues grant it tasks.
    /// Every operator must run in a sandbox that holds its own deadline. Then an outage of the control plane ends tasks.
    pub strict: bool,
    /// How it learns of work.
    pub wake_by: WakeBy,
    /// Where tasks of the operator `http` may call.
    pub outbound: Policy,
}

impl WorkerConfig {
    /// The defaults: one task at a time from the queue `default`, no operators, 10 s to stop, 30 s to drain.
    pub fn new(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            token: None,
            ca_file: None,
            name: None,
            queues: vec!["default".into()],
            concurrency: 1,
            operators: Operators::new(),
            sandboxes: None,
            kill_grace: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(30),
            outage_tolerance: tenure_client::OUTAGE_TOLERANCE,
            strict: false,
            wake_by: WakeBy::Pull,
            outbound: Policy { settings: "outbound", ..Policy::default() },
        }
    }
}

/// Where the worker's token comes from.
#[derive(Clone)]
pub enum TokenSource {
    Text(String),
    /// Read again for every request.
    File(PathBuf),
    /// Issued by the server for the key in this file, which belongs to the worker's name.
    Bootstrap {
        key_file: PathBuf,
        token_ttl: Option<Duration>,
    },
    /// Issued by the server for a key of an admin.
    AdminKey {
        key: Secret,
        token_ttl: Option<Duration>,
    },
    /// The same with the key in a file.
    AdminKeyFile {
        key_file: PathBuf,
        token_ttl: Option<Duration>,
    },
    /// Signed by this worker itself for every request, in its name.
    SigningKey(Secret),
    /// The same with a key in a file, which is read for every request.
    SigningKeyFile(PathBuf),
}

impl TokenSource {
    /// The token of the worker with this id.
    pub fn for_worker(&self, worker_id: &str) -> WorkerToken {
        let id = worker_id.to_owned();
        match self.clone() {
            Self::Text(token) => WorkerToken::text(token),
            Self::File(path) => WorkerToken::file(path),
            Self::Bootstrap { key_file, token_ttl } => WorkerToken::bootstrap_key_file(key_file, token_ttl),
            Self::AdminKey { key, token_ttl } => WorkerToken::admin_key(key.reveal(), token_ttl),
            Self::AdminKeyFile { key_file, token_ttl } => WorkerToken::admin_key_file(key_file, token_ttl),
            Self::SigningKey(key) => WorkerToken::made(move || signed(&key, &id)),
            Self::SigningKeyFile(path) => WorkerToken::made(move || {
                let shown = path.display();
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| format!("the signing key {shown} cannot be read: {error}"))?;
                let key = Secret::new(&text).ok_or_else(|| format!("the signing key {shown} is empty"))?;
                signed(&key, &id)
            }),
        }
    }
}

/// A token for the routes of the control plane.
fn signed(key: &Secret, worker_id: &str) -> Result<String, String> {
    let keys = WorkerKeys { active: SigningKey::new(key.reveal()), ..WorkerKeys::default() };
    let now = Timestamp::now().as_second();
    let minted = keys.mint(&MintRequest::new(worker_id, Audience::ControlPlane, now));
    minted.map(|minted| minted.token.reveal().to_owned()).map_err(|error| format!("no token could be signed: {error}"))
}

impl fmt::Debug for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(hidden)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::AdminKey { .. } => f.write_str("AdminKey(hidden)"),
            Self::AdminKeyFile { key_file, .. } => f.debug_tuple("AdminKeyFile").field(key_file).finish(),
            Self::SigningKey(_) => f.write_str("SigningKey(hidden)"),
            Self::SigningKeyFile(path) => f.debug_tuple("SigningKeyFile").field(path).finish(),
            Self::Bootstrap { key_file, token_ttl } => {
                f.debug_struct("Bootstrap").field("key_file", key_file).field("token_ttl", token_ttl).finish()
            }
        }
    }
}
