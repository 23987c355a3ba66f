//! What the tests of both stores share: a store in a place of its own, commands, raw SQL and the invariants.

pub mod invariants;
pub mod make;
pub mod raw;

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tenure_core::batch::Outcome;
use tenure_core::command::claim::{Claim, Claimed, Grant};
use tenure_core::command::expire::Expire;
use tenure_core::command::promote::Promote;
use tenure_core::command::submit::{NewTask, Submit, Submitted};
use tenure_core::command::{Answer, Command, Reach};
use tenure_core::queue::Transport;
use tenure_core::task::State;
use tenure_core::{Seq, TaskId, Timestamp};
use tenure_store::postgres::Postgres;
use tenure_store::sqlite::Sqlite;
use tenure_store::{AttemptView, Batch, Clock, Done, Lane, QueueStats, Store, StoreError, TaskView};
use tenure_testkit::Database;

use raw::Raw;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sqlite,
    Postgres,
}

/// When the clocks of the tests stand still: real time would decide, on a busy machine, whether a case sees an outage.
pub const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

pub fn after_start(ms: i64) -> Timestamp {
    START.plus(ms)
}

/// Where a store keeps its tasks. Gone when dropped.
#[derive(Debug)]
pub enum Home {
    Sqlite(TempDir),
    Postgres(Database),
}

impl Home {
    pub async fn new(kind: Kind) -> Self {
        match kind {
            Kind::Sqlite => Self::Sqlite(TempDir::new().unwrap()),
            Kind::Postgres => Self::Postgres(tenure_testkit::Postgres::shared().await.database().await),
        }
    }

    /// A place that has its tables. On Postgres they are copied, which takes less time than making them.
    pub async fn prepared(kind: Kind) -> Self {
        let prepare = async |url: &str| drop(Postgres::open(url, Arc::default()).await.unwrap());
        match kind {
            Kind::Sqlite => Self::new(kind).await,
            Kind::Postgres => Self::Postgres(tenure_testkit::Postgres::shared().await.prepared_database(prepare).await),
        }
    }

    pub fn path(&self) -> PathBuf {
        match self {
            Self::Sqlite(folder) => folder.path().join("tenure.db"),
            Self::Postgres(_) => panic!("a database has no file"),
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(_) => format!("sqlite:{}", self.path().display()),
            Self::Postgres(database) => database.url().to_owned(),
        }
    }

    pub async fn open(&self, clock: &Arc<Clock>) -> Result<Arc<dyn Store>, StoreError> {
        let clock = Arc::clone(clock);
        Ok(match self {
            Self::Sqlite(_) => Arc::new(Sqlite::open(&self.path(), clock).await?),
            Self::Postgres(database) => Arc::new(Postgres::open(database.url(), clock).await?),
        })
    }

    pub async fn raw(&self) -> Raw {
        Raw::connect(self).await
    }
}

/// A store that was just made, a clock that stands still, and a second way to look at the tables.
#[derive(Debug)]
pub struct Fixture {
    client: Client,
    pub kind: Kind,
    pub clock: Arc<Clock>,
    pub raw: Raw,
    pub home: Home,
}

impl Deref for Fixture {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Fixture {
    pub async fn new(kind: Kind) -> Self {
        let home = Home::prepared(kind).await;
        let clock = Arc::new(Clock::default());
        clock.freeze(START);
        let store = home.open(&clock).await.unwrap();
        // Without a mark of life the first look would find an outage.
        store.mark_alive().await.unwrap();
        let raw = home.raw().await;
        Self { client: Client { store }, kind, clock, raw, home }
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Another control plane on the same database.
    pub async fn replica(&self) -> Client {
        Client { store: self.home.open(&self.clock).await.unwrap() }
    }

    /// Ends whatever time has ended, as the reaper does. Gives how many tasks that were.
    pub async fn reap(&self) -> usize {
        let rows = self.store.expired(10_000).await.unwrap();
        let outcomes = self.run_all(rows.into_iter().map(|row| Command::Expire(Expire { row })).collect()).await;
        outcomes.into_iter().filter(|outcome| *outcome == Ok(Answer::Done(true))).count()
    }

    /// Makes ready what is due, as the timer does. Gives how many tasks that were.
    pub async fn promote(&self) -> usize {
        let rows = self.store.due(10_000).await.unwrap().rows;
        let outcomes = self.run_all(rows.into_iter().map(|row| Command::Promote(Promote { row })).collect()).await;
        outcomes.into_iter().filter(|outcome| *outcome == Ok(Answer::Done(true))).count()
    }

    /// What must hold after anything.
    pub async fn check(&self) {
        invariants::check(&*self.store, &self.raw).await;
    }
}

/// Runs a case on a store of this kind; whatever it did, the invariants must hold behind it.
pub async fn case(kind: Kind, run: impl AsyncFnOnce(&Fixture)) {
    let fixture = Fixture::new(kind).await;
    run(&fixture).await;
    fixture.check().await;
}

/// Makes two tests of each case, one per store.
#[macro_export]
macro_rules! on_both_stores {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::common::case($crate::common::Kind::Sqlite, super::$name).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::common::case($crate::common::Kind::Postgres, super::$name).await;
            })+
        }
    };
}

/// Whoever uses a store. Cheap to clone, for many at a time.
#[derive(Debug, Clone)]
pub struct Client {
    pub store: Arc<dyn Store>,
}

impl Client {
    /// A batch with as many numbers as its commands can use.
    pub async fn batch(&self, commands: Vec<Command>) -> Batch {
        let numbers = commands.iter().map(|command| command.profile().numbers).sum::<usize>();
        let numbers = self.store.reserve_numbers(numbers as i64).await.unwrap();
        Batch { commands: Arc::new(commands), numbers, lane: Lane::Work, retrying: false }
    }

    /// Executes a batch; one that met another transaction is sent again, as the engine does.
    pub async fn execute(&self, batch: Batch) -> Done {
        for _ in 0..200 {
            match self.store.execute(batch.clone()).await {
                Err(StoreError::Contention) => tokio::task::yield_now().await,
                other => return other.unwrap_or_else(|error| panic!("{}", error.chain())),
            }
        }
        panic!("other transactions were in the way 200 times");
    }

    pub async fn run_all(&self, commands: Vec<Command>) -> Vec<Outcome> {
        self.execute(self.batch(commands).await).await.outcomes
    }

    pub async fn run(&self, command: Command) -> Outcome {
        self.run_all(vec![command]).await.remove(0)
    }

    /// An id that no task has.
    pub async fn mint(&self) -> TaskId {
        make::task_id(Seq(self.store.reserve_numbers(1).await.unwrap().take()))
    }

    /// A task to be, with nothing special about it.
    pub async fn task(&self, queue: &str) -> NewTask {
        make::task(self.mint().await, queue)
    }

    pub async fn tasks(&self, queue: &str, count: usize) -> Vec<NewTask> {
        let mut numbers = self.store.reserve_numbers(count as i64).await.unwrap();
        (0..count).map(|_| make::task(make::task_id(Seq(numbers.take())), queue)).collect()
    }

    pub async fn submit(&self, tasks: Vec<NewTask>) -> Vec<Submitted> {
        match self.run(Command::Submit(Submit { tasks, maker: None })).await {
            Ok(Answer::Submitted(submitted)) => submitted,
            other => panic!("not submitted: {other:?}"),
        }
    }

    /// Submits one task that is new.
    pub async fn put(&self, task: NewTask) -> TaskId {
        let id = task.id;
        let submitted = self.submit(vec![task]).await;
        assert!(submitted[0].created && submitted[0].id == id, "{submitted:?}");
        id
    }

    /// Submits a task with nothing special about it.
    pub async fn put_in(&self, queue: &str) -> TaskId {
        self.put(self.task(queue).await).await
    }

    pub async fn put_many(&self, queue: &str, count: usize) -> Vec<TaskId> {
        self.submit(self.tasks(queue, count).await).await.into_iter().map(|task| task.id).collect()
    }

    pub async fn claimed(&self, claim: Claim) -> Claimed {
        match self.run(Command::Claim(claim)).await {
            Ok(Answer::Claimed(claimed)) => claimed,
            other => panic!("no answer to a claim: {other:?}"),
        }
    }

    /// Claims up to `max_jobs` tasks of these queues for the worker `w`.
    pub async fn claim(&self, queues: &[&str], max_jobs: usize) -> Vec<Grant> {
        self.claimed(make::claim("w", queues, max_jobs)).await.grants
    }

    /// Claims one task, which must be there.
    pub async fn claim_one(&self, queue: &str) -> Grant {
        let mut grants = self.claim(&[queue], 1).await;
        assert_eq!(grants.len(), 1, "nothing to claim in {queue}");
        grants.remove(0)
    }

    pub async fn claim_ids(&self, queues: &[&str], max_jobs: usize) -> Vec<TaskId> {
        self.claim(queues, max_jobs).await.into_iter().map(|grant| grant.task).collect()
    }

    pub async fn complete(&self, grant: &Grant) -> Outcome {
        self.run(make::complete(grant, "1")).await
    }

    /// Ends a task for good as a dead letter with this error code.
    pub async fn bury(&self, grant: &Grant, code: &str) {
        let outcome = self.run(make::fail(grant, code, Some(false))).await;
        assert!(matches!(outcome, Ok(Answer::Reported(_))), "{outcome:?}");
    }

    pub async fn view(&self, id: TaskId) -> TaskView {
        self.store.task(id, &Reach::All).await.unwrap().unwrap_or_else(|| panic!("no task {id}"))
    }

    pub async fn state(&self, id: TaskId) -> State {
        self.view(id).await.place.state()
    }

    pub async fn attempts(&self, id: TaskId) -> Vec<AttemptView> {
        self.store.attempts(id, &Reach::All).await.unwrap().unwrap_or_else(|| panic!("no task {id}"))
    }

    pub async fn queue(&self, name: &str) -> QueueStats {
        let page = self.store.queues(None, None, 1_000).await.unwrap();
        page.items.into_iter().find(|stats| &*stats.queue.name == name).unwrap_or_else(|| panic!("no queue {name}"))
    }

    pub async fn set_queue(&self, queue: &str, settings: tenure_core::queue::QueueSettings) {
        let set = tenure_core::command::queues::SetQueue {
            queue: queue.into(),
            settings,
            transport: None,
            keep_push: false,
            reach: Reach::All,
        };
        let outcome = self.run(Command::SetQueue(set)).await;
        assert!(matches!(outcome, Ok(Answer::Queue(_))), "{outcome:?}");
    }

    pub async fn set_transport(&self, queue: &str, transport: Transport) {
        let settings = self.queue(queue).await.queue.settings;
        let set = tenure_core::command::queues::SetQueue {
            queue: queue.into(),
            settings,
            transport: Some(transport),
            keep_push: false,
            reach: Reach::All,
        };
        let outcome = self.run(Command::SetQueue(set)).await;
        assert!(matches!(outcome, Ok(Answer::Queue(_))), "{outcome:?}");
    }

    pub async fn pause(&self, queue: &str, paused: bool) {
        let pause = tenure_core::command::queues::PauseQueue { queue: queue.into(), paused, reach: Reach::All };
        let outcome = self.run(Command::PauseQueue(pause)).await;
        assert!(matches!(outcome, Ok(Answer::Queue(_))), "{outcome:?}");
    }
}
