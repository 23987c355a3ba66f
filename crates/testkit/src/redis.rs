//! A real Redis of a test's own.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::Signal;
use crate::child::Child;
use crate::ports::Port;

/// How long it may take until it accepts connections.
const START: Duration = Duration::from_secs(60);

/// What it writes by then.
const READY: &str = "Ready to accept connections";

/// A server that keeps nothing on disk: what it had is gone when it is killed. Ends when dropped.
#[derive(Debug)]
pub struct Redis {
    /// `None` while the server is down.
    running: Option<Child>,
    settings: Vec<String>,
    /// Kept while the server is down.
    port: Port,
    /// Deletes the server's files. Stands after the server, which so has ended before.
    folder: TempDir,
}

impl Redis {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Panics
    ///
    /// When Redis is not installed or does not start; the message holds its log.
    pub async fn start() -> Self {
        Self::start_with(|_, _| Vec::new()).await
    }

    /// [`start`](Self::start) with more arguments, such as `--requirepass`. `prepare` gets the port, and a folder for
    /// files that they name.
    pub async fn start_with(prepare: impl FnOnce(&Path, u16) -> Vec<String>) -> Self {
        let folder = TempDir::with_prefix("tenure-redis-").expect("no folder for Redis");
        let port = Port::reserve();
        let settings = prepare(folder.path(), port.number());
        let mut server = Self { running: None, settings, port, folder };
        server.restart().await;
        server
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Ends the server at once with SIGKILL.
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn kill(&mut self) {
        self.running.take().expect("Redis is down").kill();
    }

    /// Starts the server again after [`kill`](Self::kill), on the same port, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// When it is up, or does not come up.
    pub async fn restart(&mut self) {
        assert!(self.running.is_none(), "Redis is up");
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--dir"]).arg(self.folder.path());
        command.args(&self.settings);
        let mut child = Child::spawn(command);
        child.wait_for_stdout(READY, START).await;
        self.running = Some(child);
    }

    /// Lets the server stand still, with its connections open.
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn pause(&mut self) {
        self.running.as_mut().expect("Redis is down").signal(Signal::SIGSTOP);
    }

    /// Lets the server go on after [`pause`](Self::pause).
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn resume(&mut self) {
        self.running.as_mut().expect("Redis is down").signal(Signal::SIGCONT);
    }
}
