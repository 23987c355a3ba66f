//! A server that belongs to one test, which may take it down.

use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use tempfile::TempDir;
use tenure_localpg::{Cluster, Pauses, Postmaster, Programs, START};

use super::{Postgres, SETTINGS};
use crate::ports::Port;

/// A server of the test's own. Everything a [`Postgres`] can do, it can do too.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: Postgres,
    /// `None` while the server is down.
    running: Mutex<Option<Postmaster>>,
    cluster: Cluster,
    programs: Programs,
    settings: Vec<String>,
    /// Keeps the port while the server is down.
    _port: Port,
    /// Deletes the server's files. Stands after the server, which so has ended before.
    _folder: TempDir,
}

impl PrivatePostgres {
    pub(super) async fn start(prepare: impl FnOnce(&Path) -> Vec<String>) -> Result<Self> {
        let programs = Programs::find()?;
        let folder = TempDir::with_prefix("tenure-pg-")?;
        let cluster = Cluster::create(&programs, folder.path()).await?;
        let port = Port::try_reserve()?;
        let mut settings = SETTINGS.map(str::to_owned).to_vec();
        let own = folder.path().join("own");
        std::fs::create_dir(&own)?;
        settings.extend(prepare(&own));
        hand_over(&programs, &own)?;
        let running = run(&cluster, &programs, port.number(), &settings).await?;
        Ok(Self {
            server: Postgres { port: port.number() },
            running: Mutex::new(Some(running)),
            cluster,
            programs,
            settings,
            _port: port,
            _folder: folder,
        })
    }

    /// A second server that follows this one, and takes reads only until it is promoted.
    ///
    /// # Panics
    ///
    /// When it cannot be made or does not start.
    pub async fn standby(&self) -> Self {
        match self.follow().await {
            Ok(standby) => standby,
            Err(error) => panic!("no standby: {error:?}"),
        }
    }

    async fn follow(&self) -> Result<Self> {
        let programs = Programs::find()?;
        let folder = TempDir::with_prefix("tenure-pg-")?;
        let cluster = Cluster::create_standby(&programs, folder.path(), self.port()).await?;
        let port = Port::try_reserve()?;
        let settings = self.settings.clone();
        let running = run(&cluster, &programs, port.number(), &settings).await?;
        Ok(Self {
            server: Postgres { port: port.number() },
            running: Mutex::new(Some(running)),
            cluster,
            programs,
            settings,
            _port: port,
            _folder: folder,
        })
    }

    /// From now on commits wait for the standby to have them on disk. Waits until that holds.
    ///
    /// # Panics
    ///
    /// When no standby follows.
    pub async fn wait_for_standby(&self) {
        self.ask("ALTER SYSTEM SET synchronous_standby_names = '*'").await;
        self.ask("SELECT pg_reload_conf()").await;
        let mut pauses = Pauses::until(START);
        while self.ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").await != "1" {
            assert!(pauses.pause().await.is_continue(), "no standby follows");
        }
    }

    /// Makes a standby the primary.
    ///
    /// # Panics
    ///
    /// When it is none.
    pub async fn promote(&self) {
        assert_eq!(self.ask("SELECT pg_promote(true, 60)").await, "t", "not promoted");
    }

    /// Makes the server refuse all writes, in open sessions too, as one that was demoted does.
    pub async fn demote(&self) {
        self.ask("ALTER SYSTEM SET default_transaction_read_only = on").await;
        self.ask("SELECT pg_reload_conf()").await;
    }

    /// The first column of the first row that a statement gives.
    ///
    /// # Panics
    ///
    /// When it fails.
    pub async fn ask(&self, statement: &str) -> String {
        match tenure_localpg::run(self.port(), statement).await {
            Ok(answer) => answer,
            Err(error) => panic!("{statement}: {error:?}"),
        }
    }

    /// Shuts the server down in order, ending its connections.
    ///
    /// # Panics
    ///
    /// When it is down, or does not shut down.
    pub async fn stop(&self) {
        self.take_down().stop().await;
    }

    /// Ends the server at once with SIGKILL, as a loss of power would: nothing that runs in it gets
    /// to finish, and its connections break.
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn kill(&self) {
        self.take_down().crash();
    }

    /// Stops every process of the server where it is, as a machine that hangs would: connections stay and nothing is
    /// answered.
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn freeze(&self) {
        self.running().as_mut().expect("the server is down").freeze();
    }

    /// Lets the server go on after [`freeze`](Self::freeze).
    ///
    /// # Panics
    ///
    /// When it is down.
    pub fn thaw(&self) {
        self.running().as_mut().expect("the server is down").thaw();
    }

    /// Starts the server again after [`stop`](Self::stop) or [`kill`](Self::kill), with the same
    /// data and on the same port, and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// When it is up, or does not come up.
    pub async fn start_again(&self) {
        assert!(self.running().is_none(), "the server is up");
        let mut pauses = Pauses::until(START);
        let running = loop {
            match run(&self.cluster, &self.programs, self.port(), &self.settings).await {
                Ok(running) => break running,
                // A server does not start while a process of the one before is on its way out.
                Err(error) => {
                    if pauses.pause().await.is_break() {
                        panic!("cannot start Postgres again: {error:?}");
                    }
                }
            }
        };
        *self.running() = Some(running);
    }

    fn running(&self) -> MutexGuard<'_, Option<Postmaster>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_down(&self) -> Postmaster {
        self.running().take().expect("the server is down")
    }
}

async fn run(cluster: &Cluster, programs: &Programs, port: u16, settings: &[String]) -> Result<Postmaster> {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    Postmaster::start(cluster, programs, port, &settings).await
}

/// Keys must belong to the user that the server runs as.
fn hand_over(programs: &Programs, folder: &Path) -> Result<()> {
    programs.hand_over(folder)?;
    for entry in std::fs::read_dir(folder)? {
        programs.hand_over(&entry?.path())?;
    }
    Ok(())
}

impl Deref for PrivatePostgres {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        &self.server
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::{Client, NoTls};

    use super::*;
    use crate::wait_until;

    async fn connect(url: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    #[tokio::test]
    async fn committed_data_survives_a_kill_and_a_stop() {
        let server = Postgres::start().await;
        let database = server.database().await;
        let client = connect(database.url()).await;
        client.batch_execute("CREATE TABLE t (n int)").await.unwrap();
        for n in 1..=2 {
            let client = connect(database.url()).await;
            client.execute("INSERT INTO t VALUES ($1)", &[&n]).await.unwrap();
            if n == 1 {
                server.kill();
            } else {
                server.stop().await;
            }
            client.simple_query("SELECT 1").await.unwrap_err();
            tokio_postgres::connect(database.url(), NoTls).await.map(|_| ()).unwrap_err();
            server.start_again().await;
        }
        let row = connect(database.url()).await.query_one("SELECT sum(n) FROM t", &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 3);
    }

    #[tokio::test]
    async fn a_kill_ends_a_statement_that_runs() {
        let server = Postgres::start().await;
        let database = server.database().await;
        let client = connect(database.url()).await;
        client.batch_execute("CREATE TABLE t (n bigint)").await.unwrap();
        // Long enough to be surely unfinished, and busy, so that it would not notice by itself.
        let busy = tokio::spawn(async move {
            let statement = "INSERT INTO t SELECT sum(a) FROM generate_series(1, 100000000) a";
            client.batch_execute(statement).await
        });
        let observer = connect(database.url()).await;
        wait_until("the statement runs", START, async || {
            let running = "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'INSERT%' \
                           AND state = 'active' AND pid <> pg_backend_pid()";
            !observer.query(running, &[]).await.unwrap().is_empty()
        })
        .await;
        server.kill();
        busy.await.unwrap().unwrap_err();
        server.start_again().await;
        let rows = connect(database.url()).await.query("SELECT n FROM t", &[]).await;
        assert!(rows.unwrap().is_empty());
    }
}
