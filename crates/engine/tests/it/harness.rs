//! Where the tasks are, and the commands that the tests send.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::attempt::{Progress, Report};
use tenure_core::command::claim::{Claim, Claimer, Grant};
use tenure_core::command::heartbeat::Heartbeat;
use tenure_core::command::report::AttemptReport;
use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_engine::{Engine, random_seed, store};
use tenure_testkit::{Database, Postgres, wait_until};

/// Long: it only decides how late a failure is noticed.
pub const SOON: Duration = Duration::from_secs(60);

/// Runs a case on both stores.
#[macro_export]
macro_rules! on_both_stores {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::harness::Home::sqlite()).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($crate::harness::Home::postgres().await).await;
            })+
        }
    };
}

pub enum Home {
    Sqlite(tempfile::TempDir),
    Postgres(Database),
}

impl Home {
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub async fn postgres() -> Self {
        let prepare = async |url: &str| drop(store::postgres::Postgres::open(url, Arc::default()).await.unwrap());
        Self::Postgres(Postgres::shared().await.prepared_database(prepare).await)
    }

    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("tenure.db").display()),
            Self::Postgres(database) => database.url().to_owned(),
        }
    }

    /// Holds the store's writers up until what it gives is dropped.
    pub async fn hold(&self) -> Held {
        self.hold_by("LOCK TABLE bodies, running IN SHARE MODE").await
    }

    /// Holds up whoever has taken a ready task and is about to write down that it is granted.
    ///
    /// On Postgres by a row that is in its way, not by a lock on the table: a claim would wait for that already when it
    /// prepares its statements on a new connection, with nothing taken yet.
    pub async fn hold_grants(&self) -> Held {
        self.hold_by(
            "INSERT INTO running (seq, id, queue_id, priority, message, worker_id, token, fence, expires_at, attempt,
                 attempt_id, granted_at, lease_ttl_ms, heartbeat_ms)
             SELECT seq, gen_random_uuid(), queue_id, priority, 0, '', gen_random_uuid(), 1, now(), 1,
                 gen_random_uuid(), now(), 1, 1
             FROM ready",
        )
        .await
    }

    async fn hold_by(&self, statement: &str) -> Held {
        match self {
            Self::Sqlite(folder) => {
                let connection = rusqlite::Connection::open(folder.path().join("tenure.db")).unwrap();
                connection.busy_timeout(SOON).unwrap();
                connection.execute_batch("BEGIN IMMEDIATE").unwrap();
                Held::Sqlite { _connection: connection }
            }
            Self::Postgres(database) => {
                let (client, connection) =
                    tokio_postgres::connect(database.url(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(&format!("BEGIN; {statement}")).await.unwrap();
                Held::Postgres { client }
            }
        }
    }
}

/// The store's writers wait for this to be dropped.
pub enum Held {
    Sqlite { _connection: rusqlite::Connection },
    Postgres { client: tokio_postgres::Client },
}

impl Held {
    /// Waits until a grant stands before it.
    pub async fn by_a_grant(&self) {
        match self {
            // Its one writer tells nobody that it waits.
            Self::Sqlite { .. } => {
                let started = Instant::now();
                wait_until("a writer waits", SOON, async || started.elapsed() > Duration::from_millis(500)).await;
            }
            Self::Postgres { client } => {
                let waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid";
                wait_until("a writer waits", SOON, async || !client.query(waiting, &[]).await.unwrap().is_empty())
                    .await;
            }
        }
    }
}

/// New tasks of queue `q`.
pub async fn new_tasks(engine: &Engine, count: usize) -> Submit {
    new_tasks_of(engine, "q", count).await
}

async fn new_tasks_of(engine: &Engine, queue: &str, count: usize) -> Submit {
    let name: Arc<str> = "default".into();
    let tasks = engine.mint(count).await.unwrap().into_iter().map(|id| NewTask {
        id,
        queue: queue.into(),
        operator: "op".into(),
        tenant: Arc::clone(&name),
        owner: None,
        workspace: Arc::clone(&name),
        priority: 5,
        payload: "{}".into(),
        spec: Default::default(),
        start: Start::Now,
        tags: Default::default(),
        idempotency: None,
        traceparent: None,
        submitted_by: None,
        envelope: None,
    });
    Submit { tasks: tasks.collect(), maker: None }
}

pub async fn submit(engine: &Engine, count: usize) {
    submit_to(engine, "q", count).await;
}

pub async fn submit_to(engine: &Engine, queue: &str, count: usize) {
    let submit = new_tasks_of(engine, queue, count).await;
    assert_eq!(engine.submit(submit, 0).await.unwrap().unwrap().len(), count);
}

pub fn claim(worker: &str, max_jobs: usize) -> Claim {
    let claimer = Claimer::worker(worker.into(), random_seed());
    Claim { claimer, queues: vec!["q".into()], max_jobs }
}

pub fn complete(grant: &Grant) -> AttemptReport {
    let report = Report::succeeded(Some(r#"{"rows":1}"#.into()));
    AttemptReport { task: grant.task, attempt_id: grant.attempt_id, token: grant.token, report, data: None }
}

pub fn heartbeat(grant: &Grant) -> Heartbeat {
    let progress = Progress::default();
    Heartbeat { task: grant.task, attempt: None, token: grant.token, worker: None, progress, checkpoint: None }
}
