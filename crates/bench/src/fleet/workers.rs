//! Workers that hold the sandboxes: processes of their own.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result};

use crate::stand::{Place, Stand, without_settings};

/// More than is ever asked for: what is measured is the control plane, not whether there is room.
const MEMORY_MB: &str = "100000000";
const VCPUS: &str = "1000000";

/// The configuration of a control plane whose sandboxes are of this provider.
pub fn settings(provider: &str) -> String {
    format!("providers:\n  default: {provider}\n")
}

#[derive(Debug)]
pub struct WorkerProcess {
    pub rpc_url: String,
    log: PathBuf,
    process: Child,
    /// The worker ends when it is closed, and its sandboxes with it.
    stdin: Option<ChildStdin>,
}

impl WorkerProcess {
    pub fn start(tenure: &Path, place: &Place, stand: &Stand, id: &str, provider: &str) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = place.folder().join(format!("{id}.log"));
        let mut command = Command::new(tenure);
        command
            .args(["worker", "--id", id, "--until-eof", "--listen", &format!("127.0.0.1:{port}")])
            .args(["--server", &stand.target.url(), "--data"])
            .arg(place.folder())
            .arg("--data-dir")
            .arg(place.folder().join(id))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        without_settings(&mut command);
        command.env("TENURE_WORKER__CAPACITY__MEMORY_MB", MEMORY_MB).env("TENURE_WORKER__CAPACITY__VCPUS", VCPUS);
        // What the control plane shows when it calls.
        command.env("TENURE_AUTH__WORKER_TOKEN", place.worker_token()?);
        command.env("TENURE_PROVIDERS__DEFAULT", provider);
        for name in ["namespace", "process", "docker"] {
            let variable = format!("TENURE_PROVIDERS__{}__ENABLED", name.to_uppercase());
            command.env(variable, (name == provider).to_string());
        }
        let mut process = command.spawn().context("a worker could not be started")?;
        let stdin = process.stdin.take();
        Ok(Self { rpc_url: format!("http://127.0.0.1:{port}"), log, process, stdin })
    }

    /// The end of its log, for an error.
    pub fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("the worker did not come: {}", text.lines().last().unwrap_or("it said nothing"))
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.process.wait();
    }
}
