//! A server that speaks as SQS, STS and S3 do: moto, from the Python Package Index.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::child::Child;
use crate::ports::Port;
use crate::python;

/// What is installed. `moto[server]` would bring far more, for other services.
const PACKAGES: [&str; 3] = ["moto==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"];

/// How long it may take until it accepts connections.
const START: Duration = Duration::from_secs(120);

/// What it writes by then.
const READY: &str = "Running on http";

/// A server that keeps nothing: queues, messages, buckets and objects are gone when it is killed. Ends when dropped.
#[derive(Debug)]
pub struct Moto {
    /// `None` while the server is down.
    running: Option<Child>,
    program: PathBuf,
    /// Kept while the server is down.
    port: Port,
}

impl Moto {
    /// Starts a server on a free port of 127.0.0.1. Once per machine it is installed, in a virtual environment that
    /// stays for later tests.
    ///
    /// # Panics
    ///
    /// When there is no Python with `venv`, the packages cannot be installed, or the server does not start.
    pub async fn start() -> Self {
        let program = tokio::task::spawn_blocking(install).await.expect("the installation panicked");
        let program = program.unwrap_or_else(|error| panic!("no moto: {error:?}"));
        let mut server = Self { running: None, program, port: Port::reserve() };
        server.restart().await;
        server
    }

    /// `http://127.0.0.1:PORT`. Any region and any credentials do.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    /// Ends the server at once with SIGKILL.
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn kill(&mut self) {
        self.running.take().expect("moto is down").kill();
    }

    /// Starts the server again after [`kill`](Self::kill), on the same port and with nothing in it.
    ///
    /// # Panics
    ///
    /// When it is up, or does not come up.
    pub async fn restart(&mut self) {
        assert!(self.running.is_none(), "moto is up");
        let mut command = Command::new(&self.program);
        command.args(["-H", "127.0.0.1", "-p", &self.port.number().to_string()]);
        let mut child = Child::spawn(command);
        child.wait_for_stderr(READY, START).await;
        self.running = Some(child);
    }
}

/// The path of the server, after it was installed if need be.
fn install() -> Result<PathBuf> {
    Ok(python::install(&PACKAGES[0].replace("==", "-"), &PACKAGES)?.join("moto_server"))
}
