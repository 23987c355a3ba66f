use std::time::Duration;

/// What calls may use, and how long they wait.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `defaults.default_exec_timeout`; zero means none.
    pub default_exec_timeout: Duration,
    /// `defaults.max_exec_timeout`; zero means none.
    pub max_exec_timeout: Duration,
    /// Calls to one worker at once. Others wait.
    pub max_calls: usize,
    /// Streams, transfers, sockets and proxied requests to one worker at once.
    pub max_sessions: usize,
    /// Memory for large bodies and answers of all calls together.
    pub memory_bytes: usize,
    pub times: Times,
}

/// The deadlines of calls.
#[derive(Debug, Clone)]
pub struct Times {
    /// To open a connection: name, TCP and TLS.
    pub connect: Duration,
    /// To wait for room among the calls to a worker, or for memory.
    pub room: Duration,
    /// `worker.spawn_timeout`.
    pub spawn: Duration,
    pub destroy: Duration,
    /// `worker.snapshot` and `worker.restore`.
    pub snapshot: Duration,
    /// File calls, apart from the time for their bytes, and questions about a sandbox.
    pub call: Duration,
    /// `worker.renew_lease`, `worker.shutdown`, `worker.undrain`.
    pub control: Duration,
    /// What `worker.exec` gets beyond the command's own timeout.
    pub exec_margin: Duration,
    /// Without a line of a stream or a message of a socket.
    pub stream_idle: Duration,
    /// Without progress of a transfer.
    pub stalled: Duration,
    /// Until a port in a sandbox begins to answer.
    pub proxy_head: Duration,
    /// How long an unused connection is kept. Shorter than the 60 s after which a worker closes it.
    pub pooled: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            default_exec_timeout: Duration::ZERO,
            max_exec_timeout: Duration::from_secs(10 * 60),
            max_calls: 256,
            max_sessions: 512,
            memory_bytes: 512 << 20,
            times: Times::default(),
        }
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            room: Duration::from_secs(5),
            spawn: Duration::from_secs(2 * 60),
            destroy: Duration::from_secs(60),
            snapshot: Duration::from_secs(10 * 60),
            call: Duration::from_secs(30),
            control: Duration::from_secs(10),
            exec_margin: Duration::from_secs(10),
            stream_idle: Duration::from_secs(60),
            stalled: Duration::from_secs(60),
            proxy_head: Duration::from_secs(2 * 60),
            pooled: Duration::from_secs(20),
        }
    }
}

impl Settings {
    /// How long a command may run; none without any bound. The worker computes the same.
    pub(crate) fn exec_timeout(&self, asked: Option<Duration>) -> Option<Duration> {
        let set = |duration: Duration| (!duration.is_zero()).then_some(duration);
        let wanted = asked.and_then(set).or_else(|| set(self.default_exec_timeout));
        match (wanted, set(self.max_exec_timeout)) {
            (Some(wanted), Some(most)) => Some(wanted.min(most)),
            (wanted, most) => wanted.or(most),
        }
    }
}

impl Times {
    /// For a call that moves this many bytes: a second more for each MiB.
    pub(crate) fn for_bytes(&self, bytes: usize) -> Duration {
        self.call.saturating_add(Duration::from_secs((bytes >> 20) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_as_long_as_it_asks_up_to_the_limit() {
        let second = Duration::from_secs(1);
        for (asked, default, max, expected) in [
            (None, 0, 600, Some(600)),
            (Some(30), 0, 600, Some(30)),
            (Some(700), 0, 600, Some(600)),
            (Some(0), 20, 600, Some(20)),
            (None, 20, 10, Some(10)),
            (None, 0, 0, None),
            (Some(9), 0, 0, Some(9)),
        ] {
            let settings = Settings {
                default_exec_timeout: default * second,
                max_exec_timeout: max * second,
                ..Settings::default()
            };
            let found = settings.exec_timeout(asked.map(|asked| asked * second));
            assert_eq!(found, expected.map(|expected| expected * second), "{asked:?} {default} {max}");
        }
    }
}
