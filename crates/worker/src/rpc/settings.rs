use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// What a listener is allowed to use, and how long it waits.
#[derive(Debug, Clone)]
pub struct RpcSettings {
    /// Snapshots are kept in a folder of it.
    pub data_dir: PathBuf,
    pub exec: Arc<ExecTimes>,
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

/// How long commands may take. What is set later holds for the next command.
#[derive(Debug)]
pub struct ExecTimes(RwLock<(Duration, Duration)>);

impl ExecTimes {
    /// `defaults.default_exec_timeout` and `defaults.max_exec_timeout`; zero means none.
    pub fn new(default: Duration, max: Duration) -> Self {
        Self(RwLock::new((default, max)))
    }

    pub fn set(&self, default: Duration, max: Duration) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = (default, max);
    }

    /// What was asked for, else the default; at most the maximum.
    pub(super) fn effective(&self, asked: Option<Duration>) -> Option<Duration> {
        let some = |duration: Duration| Some(duration).filter(|duration| !duration.is_zero());
        let (default, max) = *self.0.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = asked.and_then(some).or_else(|| some(default));
        match some(max) {
            Some(max) => Some(wanted.map_or(max, |wanted| wanted.min(max))),
            None => wanted,
        }
    }
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
            exec: Arc::new(ExecTimes::new(Duration::ZERO, Duration::from_secs(10 * 60))),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_capped_and_has_a_default() {
        let second = Duration::from_secs(1);
        let times = ExecTimes::new(Duration::ZERO, Duration::ZERO);
        for (asked, default, max, expected) in [
            (None, 0, 600, Some(600)),
            (Some(30), 0, 600, Some(30)),
            (Some(700), 0, 600, Some(600)),
            (Some(0), 20, 600, Some(20)),
            (None, 20, 10, Some(10)),
            (None, 0, 0, None),
            (Some(9), 0, 0, Some(9)),
        ] {
            times.set(default * second, max * second);
            let found = times.effective(asked.map(|asked| asked * second));
            assert_eq!(found, expected.map(|expected| expected * second), "{asked:?} {default} {max}");
        }
    }
}
