//! What is measured: a control plane with its store, started for the measurement or given.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tenure_localpg::{Cluster, Postmaster, Programs, USER};
use tokio_postgres::{Client, NoTls};

use crate::http::Target;
use crate::process;

/// The database of a Postgres server that was started here.
const DATABASE: &str = "tenure";

/// Which store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// A new file in a temporary folder.
    Sqlite,
    /// A server of its own, from the programs found on this machine.
    Postgres,
    /// A database that is there already.
    PostgresAt(String),
}

impl StoreChoice {
    /// `sqlite`, `postgres` or `postgres://…`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sqlite" => Ok(Self::Sqlite),
            "postgres" => Ok(Self::Postgres),
            url if url.starts_with("postgres://") || url.starts_with("postgresql://") => {
                Ok(Self::PostgresAt(url.to_owned()))
            }
            _ => Err("use sqlite, postgres, or the address of an empty database: postgres://user@host/database".into()),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres | Self::PostgresAt(_) => "postgres",
        }
    }
}

/// Where the store of a measurement is. Goes away with this value, unless it was there before.
#[derive(Debug)]
pub struct Place {
    pub choice: StoreChoice,
    own_postgres: Option<OwnPostgres>,
    folder: TempDir,
}

/// A Postgres server that was started here.
#[derive(Debug)]
struct OwnPostgres {
    server: Postmaster,
    url: String,
    /// Stands after the server, which so has ended before. Apart from the folder of the control plane, which only its
    /// owner may enter.
    _files: TempDir,
}

impl OwnPostgres {
    /// With the settings of a fresh installation.
    async fn start() -> Result<Self> {
        let programs = Programs::find()?;
        let files = TempDir::with_prefix("tenure-bench-pg-")?;
        let cluster = Cluster::create(&programs, files.path()).await?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Postmaster::start(&cluster, &programs, port, &[]).await?;
        tenure_localpg::run(port, &format!("CREATE DATABASE {DATABASE}"))
            .await
            .context("the database could not be created")?;
        let url = format!("postgres://{USER}@127.0.0.1:{port}/{DATABASE}");
        Ok(Self { server, url, _files: files })
    }
}

impl Place {
    pub async fn prepare(choice: StoreChoice) -> Result<Self> {
        let own_postgres = match &choice {
            StoreChoice::Postgres => Some(OwnPostgres::start().await?),
            StoreChoice::Sqlite => None,
            StoreChoice::PostgresAt(url) => {
                connect(url).await?;
                None
            }
        };
        let folder = TempDir::with_prefix("tenure-bench-").context("the temporary folder could not be created")?;
        Ok(Self { choice, own_postgres, folder })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn postgres_url(&self) -> Option<&str> {
        match (&self.choice, &self.own_postgres) {
            (StoreChoice::PostgresAt(url), _) => Some(url),
            (_, own) => own.as_ref().map(|own| own.url.as_str()),
        }
    }

    /// The processor time of the Postgres server so far, if it was started here.
    pub fn processor_time(&self) -> Option<Duration> {
        process::processor_time(self.own_postgres.as_ref()?.server.id())
    }

    /// What `tenure serve --store` is given.
    fn store_url(&self) -> String {
        match self.postgres_url() {
            Some(url) => url.to_owned(),
            None => format!("sqlite:{}", self.sqlite_file().display()),
        }
    }

    /// What the control plane and its workers know each other by, once it has started.
    pub fn worker_token(&self) -> Result<String> {
        let token = std::fs::read_to_string(self.folder().join("worker-token"));
        Ok(token.context("the server created no worker token")?.trim().to_owned())
    }

    pub fn sqlite_file(&self) -> PathBuf {
        self.folder().join("tenure.db")
    }

    /// How many bytes the store takes on disk.
    pub async fn store_bytes(&self) -> Result<u64> {
        let Some(url) = self.postgres_url() else {
            let size = |suffix: &str| {
                let mut path = self.sqlite_file().into_os_string();
                path.push(suffix);
                std::fs::metadata(path).map_or(0, |file| file.len())
            };
            return Ok(size("") + size("-wal"));
        };
        let client = connect(url).await?;
        let size: i64 = client.query_one("SELECT pg_database_size(current_database())", &[]).await?.get(0);
        Ok(size.unsigned_abs())
    }

    /// Lets a Postgres do at once what it would do by itself within a minute, so that it does not do it in the middle of
    /// what is timed: vacuum, analyze, checkpoint. SQLite has nothing of the kind.
    pub async fn tidy(&self) -> Result<()> {
        if let Some(url) = self.postgres_url() {
            let client = connect(url).await?;
            client.batch_execute("VACUUM ANALYZE").await?;
            // Only a superuser may; without it the figures are a little less steady.
            let _ = client.batch_execute("CHECKPOINT").await;
        }
        Ok(())
    }

    /// What runs the store: the version of SQLite, or of the Postgres server.
    pub async fn store_version(&self) -> Result<String> {
        let Some(url) = self.postgres_url() else { return Ok(format!("SQLite {}", rusqlite::version())) };
        let client = connect(url).await?;
        let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
        Ok(format!("Postgres {version}"))
    }
}

/// A connection to a Postgres store. Errors do not repeat its address, which may hold a password.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.context("no connection to Postgres")?;
    tokio::spawn(connection);
    Ok(client)
}

/// Only what is said with the command counts, not what lies around.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
}

/// A control plane under test.
#[derive(Debug)]
pub struct Stand {
    pub target: Target,
    process: Option<Child>,
}

impl Stand {
    /// Starts `tenure serve` on the store of `place`. `settings` is the text of its configuration.
    pub fn start(tenure: &Path, place: &Place, settings: &str) -> Result<Self> {
        let folder = place.folder();
        let config = folder.join("tenure.yaml");
        std::fs::write(&config, settings)?;
        let log = folder.join("server.log");
        let mut command = Command::new(tenure);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--store", &place.store_url()])
            .arg("--data")
            .arg(folder)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?);
        without_settings(&mut command);
        let mut process = command.spawn().with_context(|| format!("{} could not be started", tenure.display()))?;
        let mut line = String::new();
        let stdout = process.stdout.take().context("a server without output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let Some(url) = line.trim().strip_prefix("tenure listening on ") else {
            let _ = process.kill();
            let _ = process.wait();
            bail!("the server did not start: {}", std::fs::read_to_string(log).unwrap_or_default().trim());
        };
        Ok(Self { target: Target::new(url, Some(&place.worker_token()?), None)?, process: Some(process) })
    }

    /// A control plane that runs already.
    pub fn given(target: Target) -> Self {
        Self { target, process: None }
    }

    /// The memory of the control plane in RAM, in bytes, if it runs here.
    pub fn memory(&self) -> Option<u64> {
        process::memory(self.process.as_ref()?.id())
    }

    /// The processor time of the control plane so far, if it runs here.
    pub fn processor_time(&self) -> Option<Duration> {
        process::processor_time(self.process.as_ref()?.id())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Processor time between two moments.
pub struct Usage<'a> {
    stand: &'a Stand,
    place: Option<&'a Place>,
    started: Instant,
    own: Option<Duration>,
    store: Option<Duration>,
}

impl<'a> Usage<'a> {
    pub fn begin(stand: &'a Stand, place: Option<&'a Place>) -> Self {
        let store = place.and_then(Place::processor_time);
        Self { stand, place, started: Instant::now(), own: stand.processor_time(), store }
    }

    /// Of one core: the control plane, and a Postgres that was started here.
    pub fn end(self) -> (Option<f64>, Option<f64>) {
        let time = self.started.elapsed().as_secs_f64();
        let share = |before: Option<Duration>, after: Option<Duration>| {
            Some(after?.saturating_sub(before?).as_secs_f64() / time)
        };
        let store = self.place.and_then(Place::processor_time);
        (share(self.own, self.stand.processor_time()), share(self.store, store))
    }
}
