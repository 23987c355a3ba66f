use std::path::PathBuf;
use std::time::Duration;

/// What a listener is allowed to use, and how long it waits.
#[derive(Debug, Clone)]
pub struct RpcSettings {
    /// Snapshots are kept in a folder of it.
    pub data_dir: PathBuf,
    /// `defaults.default_exec_timeout`; zero means none.
    pub default_exec_timeout: Duration,
    /// `defaults.max_exec_timeout`; zero means none.
    pub max_exec_timeout: Duration,
    /// `worker.spawn_timeout`.
    pub spawn_timeout: Duration,
    /// `worker.shutdown_timeout`: how long calls may go on after the listener was told to stop.
    pub drain_timeout: Duration,
    /// At once, and as many WebSockets beside them.
    pub max_connections: usize,
    /// Memory for bodies and answers of all calls together.
    pub memory_bytes: usize,
    /// Answers that are kept for repeated requests.
    pub replay_entries: usize,
    pub replay_bytes: usize,
    /// Snapshots on this worker's disk, together.
    pub snapshot_bytes: u64,
    pub times: RpcTimes,
}

/// The deadlines of connections and streams.
#[derive(Debug, Clone)]
pub struct RpcTimes {
    /// To read the head of a request.
    pub head: Duration,
    /// Without progress of a request's body.
    pub body: Duration,
    /// A connection between two requests.
    pub idle: Duration,
    /// Without progress of an answer: its reader is gone.
    pub stalled: Duration,
    /// Silence of a stream before a sign of life is sent.
    pub keep_alive: Duration,
    /// How long the first bytes of a character wait for the rest.
    pub split_character: Duration,
    /// How long a repeated request gets the same answer.
    pub replay: Duration,
    /// A file call, apart from the time for its bytes, and a question about a sandbox.
    pub call: Duration,
    /// `worker.destroy`.
    pub destroy: Duration,
    /// `worker.snapshot`.
    pub snapshot: Duration,
    /// `worker.renew_lease`.
    pub renew: Duration,
    /// What `worker.exec` gets beyond the command's own timeout.
    pub exec_margin: Duration,
}

impl RpcSettings {
    /// The defaults of the contract.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            default_exec_timeout: Duration::ZERO,
            max_exec_timeout: Duration::from_secs(10 * 60),
            spawn_timeout: Duration::from_secs(2 * 60),
            drain_timeout: Duration::from_secs(10),
            max_connections: 1024,
            memory_bytes: 512 << 20,
            replay_entries: 10_000,
            replay_bytes: 64 << 20,
            snapshot_bytes: 16 << 30,
            times: RpcTimes::default(),
        }
    }
}

impl Default for RpcTimes {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(60),
            stalled: Duration::from_secs(60),
            keep_alive: Duration::from_secs(15),
            split_character: Duration::from_millis(50),
            replay: Duration::from_secs(10 * 60),
            call: Duration::from_secs(30),
            destroy: Duration::from_secs(60),
            snapshot: Duration::from_secs(10 * 60),
            renew: Duration::from_secs(10),
            exec_margin: Duration::from_secs(10),
        }
    }
}

impl RpcTimes {
    /// For a call that moves this many bytes: a second more for each MiB.
    pub(super) fn for_bytes(&self, base: Duration, bytes: u64) -> Duration {
        base.saturating_add(Duration::from_secs(bytes >> 20))
    }
}
