//! The files of one server: how they are made, how a server runs on them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::pauses::Pauses;
use crate::programs::Programs;
use crate::sql::{self, USER};

/// How long a server may take until it accepts connections. After a crash it has to recover first.
pub const START: Duration = Duration::from_secs(60);

/// The folder of one server. Belongs to the user that the server runs as.
#[derive(Debug)]
pub struct Cluster {
    folder: PathBuf,
}

impl Cluster {
    /// Sets up the files in an empty folder.
    pub async fn create(programs: &Programs, folder: &Path) -> Result<Self> {
        programs.hand_over(folder)?;
        let cluster = Self::at(fs::canonicalize(folder)?);
        let mut initdb = programs.command(programs.path("initdb"), folder);
        initdb
            .arg("--pgdata")
            .arg(cluster.data())
            .args(["--username", USER, "--auth", "trust"])
            .args(["--encoding", "UTF8", "--locale", "C"])
            // These files need not survive a loss of power, only what is written to them later.
            .arg("--no-sync");
        let output = tokio::process::Command::from(initdb).output().await.context("cannot run initdb")?;
        ensure!(output.status.success(), "initdb failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(cluster)
    }

    /// Sets up the files of a standby in an empty folder: a copy of the server on this port, which follows it.
    pub async fn create_standby(programs: &Programs, folder: &Path, primary: u16) -> Result<Self> {
        programs.hand_over(folder)?;
        let cluster = Self::at(fs::canonicalize(folder)?);
        let mut copy = programs.command(programs.path("pg_basebackup"), folder);
        copy.arg("--pgdata")
            .arg(cluster.data())
            .args(["--host", "127.0.0.1", "--port", &primary.to_string(), "--username", USER])
            .args(["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"]);
        let output = tokio::process::Command::from(copy).output().await.context("cannot run pg_basebackup")?;
        ensure!(output.status.success(), "pg_basebackup failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(cluster)
    }

    /// The files that [`create`](Self::create) has set up in the folder.
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// The command line of a server on these files. `settings` are those that differ from Postgres's defaults.
    pub fn server(&self, programs: &Programs, port: u16, settings: &[&str]) -> Vec<OsString> {
        let mut line = vec![
            programs.path("postgres").into(),
            "-D".into(),
            self.data().into(),
            "-p".into(),
            port.to_string().into(),
            // The usual folder for its socket belongs to the system's own Postgres.
            "-k".into(),
            self.folder.clone().into(),
        ];
        for setting in ["listen_addresses=127.0.0.1"].iter().chain(settings) {
            line.extend(["-c".into(), (*setting).into()]);
        }
        line
    }

    /// Where a server's messages go: a file, since a server may outlive the test that started it.
    pub fn log(&self) -> io::Result<(Stdio, Stdio)> {
        let file = File::options().append(true).create(true).open(self.log_path())?;
        Ok((file.try_clone()?.into(), file.into()))
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Waits until the server that `process` runs accepts connections.
    pub async fn wait_until_ready(&self, process: &mut Child, port: u16) -> Result<()> {
        let mut pauses = Pauses::until(START);
        let why = loop {
            match process.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => break format!("ended with {status}"),
                Err(error) => break format!("is lost: {error}"),
            }
            if let Ok(true) = self.answers(port).await {
                return Ok(());
            }
            if pauses.pause().await.is_break() {
                break format!("does not accept connections after {START:?}");
            }
        };
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        bail!("the Postgres server {why}; its log:\n{log}")
    }

    /// Whether the server on this port is the one that runs on these files, and not one that came
    /// later and took the port.
    pub async fn answers(&self, port: u16) -> Result<bool, tokio_postgres::Error> {
        let data = sql::run(port, "SHOW data_directory").await?;
        Ok(Path::new(&data) == self.data())
    }
}
