//! A database for one test.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tenure_localpg::USER;
use tokio::runtime;
use tokio::time::timeout;

/// How long deleting a database may hold up the end of a test.
const DROP: Duration = Duration::from_secs(20);

/// A new, empty database. Deleted when dropped, with whatever connections it still has.
#[derive(Debug)]
pub struct Database {
    port: u16,
    name: String,
    url: String,
}

impl Database {
    pub(super) async fn create(port: u16) -> Self {
        let name = unique_name();
        // Nobody can connect to template0, and so nobody is in the way of copying it.
        tenure_localpg::run(port, &format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await
            .unwrap_or_else(|error| panic!("cannot make the database {name}: {error:?}"));
        let url = format!("postgres://{USER}@127.0.0.1:{port}/{name}");
        Self { port, name, url }
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
    fn drop(&mut self) {
        let port = self.port;
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        let thread = std::thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                let _ = runtime.block_on(async { timeout(DROP, tenure_localpg::run(port, &statement)).await });
            }
        });
        let _ = thread.join();
    }
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
