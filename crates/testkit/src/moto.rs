//! A server that speaks as SQS and S3 do: moto, from the Python Package Index.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::child::Child;
use crate::ports::Port;
use crate::scratch;

/// What is installed. `moto[server]` would bring far more, for services other than SQS and S3.
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

/// The path of the server, after it was installed if need be. One test process does it and the others wait.
fn install() -> Result<PathBuf> {
    let home = scratch::folder(&PACKAGES[0].replace("==", "-"))?;
    let lock = File::create(home.join("lock"))?;
    lock.lock()?;
    let (venv, complete) = (home.join("venv"), home.join("complete"));
    let program = venv.join("bin/moto_server");
    if fs::read_to_string(&complete).is_ok_and(|installed| installed == PACKAGES.join(" ")) && program.exists() {
        return Ok(program);
    }
    // What is left of an attempt that was broken off.
    if venv.exists() {
        fs::remove_dir_all(&venv)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&venv)).context("install python3 and python3-venv")?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check"]).args(PACKAGES);
    run(&mut pip).context("is a package index reachable?")?;
    write_whole(&complete, &PACKAGES.join(" "))?;
    Ok(program)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed with {}: {said}", output.status);
    Ok(())
}

fn write_whole(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(draft, path)?;
    Ok(())
}
