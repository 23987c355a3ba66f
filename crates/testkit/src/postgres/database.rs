//! A database for one test.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_localpg::USER;
use tokio::runtime;
use tokio::time::timeout;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// How long reaching the server may hold up the end of a test.
const DROP: Duration = Duration::from_secs(20);

/// A new database. Deleted when dropped, with whatever connections it still has.
#[derive(Debug)]
pub struct Database {
    port: u16,
    name: String,
    url: String,
}

impl Database {
    pub(super) async fn create(port: u16) -> Self {
        // Nobody can connect to template0, and so nobody is in the way of copying it.
        Self::copy(port, "template0").await.unwrap_or_else(|error| panic!("cannot make a database: {error:?}"))
    }

    /// A copy of the template that this test binary has made with `prepare`. The first test that asks makes it.
    pub(super) async fn create_prepared(port: u16, prepare: impl AsyncFnOnce(&str)) -> Self {
        let template = template_name();
        match Self::copy(port, &template).await {
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_DATABASE) => {}
            made => return made.unwrap_or_else(|error| panic!("cannot copy the database {template}: {error:?}")),
        }
        let draft = Self::create(port).await;
        prepare(draft.url()).await;
        draft.turn_into(&template).await;
        Self::copy(port, &template)
            .await
            .unwrap_or_else(|error| panic!("cannot copy the database {template}: {error:?}"))
    }

    async fn copy(port: u16, template: &str) -> Result<Self, Error> {
        let name = unique_name();
        tenure_localpg::run(port, &format!("CREATE DATABASE {name} TEMPLATE {template}")).await?;
        let url = format!("postgres://{USER}@127.0.0.1:{port}/{name}");
        Ok(Self { port, name, url })
    }

    /// Several tests may do this at the same time: the first to rename its database wins, and the others drop theirs.
    async fn turn_into(self, template: &str) {
        let name = &self.name;
        let steps = [
            format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
            // A database with connections cannot be renamed. Those of `prepare` may still be closing.
            format!("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"),
            format!("ALTER DATABASE {name} RENAME TO {template}"),
        ];
        for step in steps {
            // What remains is for the copy that follows to find out.
            let _ = tenure_localpg::run(self.port, &step).await;
        }
    }

    /// How to connect to it: `postgres://postgres@127.0.0.1:PORT/NAME`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The name of the database.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Database {
    /// On a thread with a runtime of its own: this one's runtime may be gone, and where there is
    /// one it does not let a drop wait. Without success when the server is down: then the database
    /// goes away with the server's folder.
    ///
    /// Not waited for: it takes a checkpoint, often half a second, in which the next test can run.
    fn drop(&mut self) {
        let port = self.port;
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let thread = std::thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                let _ = runtime.block_on(async { timeout(DROP, tenure_localpg::send(port, &statement)).await });
            }
        });
        let _ = thread.join();
    }
}

/// One for each build of a test binary: another build may make another schema.
fn template_name() -> String {
    let binary = std::env::current_exe().expect("a test knows its own path");
    let built = binary.metadata().and_then(|metadata| metadata.modified()).ok();
    let mut hasher = DefaultHasher::new();
    (binary, built).hash(&mut hasher);
    format!("template_{:016x}", hasher.finish())
}

/// Unique over all test processes that use the server: no two have the same id at the same time,
/// and within one the clock tells the databases apart, with a counter where it is too coarse.
fn unique_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNTER: AtomicU32 = AtomicU32::new(0);

    let process = std::process::id();
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("test_{process}_{:x}_{count}", now.as_nanos())
}
