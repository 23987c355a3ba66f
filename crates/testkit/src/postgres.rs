//! Real Postgres servers: one that all tests share, and private ones that a test may kill.

mod database;
mod private;
mod shared;

use std::path::Path;

use tokio::sync::OnceCell;

pub use database::Database;
pub use private::PrivatePostgres;

/// What differs from Postgres's defaults. What it promises about committed data does not.
const SETTINGS: [&str; 2] = ["shared_buffers=64MB", "max_connections=200"];

/// A Postgres server in which a test makes databases of its own.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
}

impl Postgres {
    /// The server that all tests share, started by the first test that asks for it.
    ///
    /// cargo-nextest runs every test as a process of its own, and a server takes seconds to set up,
    /// so the server outlives the test that started it and ends two minutes after the last test
    /// that used it.
    ///
    /// # Panics
    ///
    /// When Postgres is not installed or does not start; the message holds its log.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Postgres> = OnceCell::const_new();
        SHARED
            .get_or_init(async || match shared::join_or_start().await {
                Ok(port) => Self { port },
                Err(error) => panic!("no shared Postgres: {error:?}"),
            })
            .await
    }

    /// A server of the caller's own, which it may stop and kill. Ends when dropped.
    ///
    /// # Panics
    ///
    /// When Postgres is not installed or does not start; the message holds its log.
    pub async fn start() -> PrivatePostgres {
        Self::start_with(|_| Vec::new()).await
    }

    /// [`start`](Self::start) with more settings, such as `ssl=on`. `prepare` may put files that they name, such as
    /// keys, into the folder that it is given; they are handed to the user that the server runs as.
    pub async fn start_with(prepare: impl FnOnce(&Path) -> Vec<String>) -> PrivatePostgres {
        match PrivatePostgres::start(prepare).await {
            Ok(server) => server,
            Err(error) => panic!("no private Postgres: {error:?}"),
        }
    }

    /// Makes a new, empty database that is deleted when dropped.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn database(&self) -> Database {
        Database::create(self.port).await
    }

    /// Makes a new database that is as `prepare` leaves an empty one; it gets the URL. That is done once by each test
    /// binary, and copied from then on.
    ///
    /// # Panics
    ///
    /// When the server does not make it.
    pub async fn prepared_database(&self, prepare: impl AsyncFnOnce(&str)) -> Database {
        Database::create_prepared(self.port, prepare).await
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_postgres::NoTls;

    use super::*;
    use crate::wait_until;

    async fn connect(database: &Database) -> tokio_postgres::Client {
        let (client, connection) = tokio_postgres::connect(database.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    #[tokio::test]
    async fn databases_of_the_shared_server_are_apart_from_each_other() {
        let server = Postgres::shared().await;
        let (one, other) = (server.database().await, server.database().await);
        let client = connect(&one).await;
        client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (42)").await.unwrap();
        let row = client.query_one("SELECT n FROM t", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 42);
        let elsewhere = connect(&other).await;
        assert!(elsewhere.query("SELECT n FROM t", &[]).await.is_err());
    }

    #[tokio::test]
    async fn a_prepared_database_is_prepared_once_and_then_copied() {
        let server = Postgres::start().await;
        let prepare = async |url: &str| {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (42)").await.unwrap();
        };
        // Both may find no template, and only one of theirs becomes it.
        let (one, other) = tokio::join!(server.prepared_database(prepare), server.prepared_database(prepare));
        let third = server.prepared_database(async |_: &str| panic!("it is there")).await;
        let client = connect(&one).await;
        client.batch_execute("UPDATE t SET n = 1").await.unwrap();
        for database in [&other, &third] {
            let row = connect(database).await.query_one("SELECT n FROM t", &[]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), 42);
        }
    }

    #[tokio::test]
    async fn the_shared_server_is_as_safe_as_one_in_production() {
        let database = Postgres::shared().await.database().await;
        let client = connect(&database).await;
        for (setting, expected) in [("fsync", "on"), ("synchronous_commit", "on")] {
            let row = client.query_one("SELECT current_setting($1)", &[&setting]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), expected, "{setting}");
        }
    }

    #[tokio::test]
    async fn a_dropped_database_is_gone_even_with_open_connections() {
        let server = Postgres::shared().await;
        let database = server.database().await;
        let _open = connect(&database).await;
        let name = database.name().to_owned();
        let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
        assert_eq!(tenure_localpg::run(server.port, &there).await.unwrap(), "1");
        drop(database);
        wait_until("the database is gone", Duration::from_secs(30), async || {
            tenure_localpg::run(server.port, &there).await.unwrap() == "0"
        })
        .await;
    }

    #[test]
    fn a_database_can_outlive_its_runtime() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let database = runtime.block_on(async { Postgres::shared().await.database().await });
        drop(runtime);
        drop(database);
    }
}
