//! Every step of every command fails once: with an error, with a panic, and with the answer lost behind the commit.
//! Nothing is lost, nothing happens twice, and the command sent again gets the right answer.

mod data;
mod sandboxes;
mod scenario;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::Seq;
use tenure_core::queue::Transport;
use tenure_core::task::Place;
use tenure_store::{Batch, Fault, NewRedrive, RedriveFilter, Retention, StoreError};
use tenure_testkit::wait_until;

use crate::common::{Fixture, Kind, make};
use scenario::Scenario;

/// All that the tables hold, to be compared.
async fn snapshot(t: &Fixture, scenario: Scenario) -> Vec<(&'static str, Vec<String>)> {
    const TABLES: [&str; 28] = [
        "bodies",
        "scheduled",
        "ready",
        "running",
        "finished",
        "attempts",
        "redrives",
        "events",
        "workers",
        "meta",
        "queue_counts",
        "queues",
        "deleted_queues",
        "outbox",
        "blocked",
        "runs",
        "run_tasks",
        "run_edges",
        "dataset_generations",
        "buffer_publishes",
        "dataset_events",
        "dataset_partitions",
        "dataset_artifacts",
        "edge_cursors",
        "edge_partitions",
        "data_invalidations",
        "invalidation_dependents",
        "operator_state",
    ];
    let mut all = Vec::new();
    for table in TABLES {
        // Postgres makes a queue that nobody has heard of before the batch: an empty one is no harm.
        if table == "queues" && scenario.makes_queues() {
            continue;
        }
        let rows = t.raw.rows(&format!("SELECT * FROM {table}")).await;
        let mut rows: Vec<_> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort_unstable();
        all.push((table, rows));
    }
    all
}

async fn every_step(kind: Kind, scenario: Scenario) {
    let t = Fixture::new(kind).await;
    // So that the outbox is written too.
    t.store.set_default_transport(Transport::Redis);
    let steps = fail_each(&t, scenario, Fault::Error, 1).await;
    assert!(steps >= 5, "only {steps} steps of {scenario:?} can fail on {kind:?}");
    assert_eq!(fail_each(&t, scenario, Fault::Panic, 1).await, steps);
    // The answer that can be lost is that to the commit, which is the last step.
    assert_eq!(fail_each(&t, scenario, Fault::LostAnswer, steps - 1).await, steps);
}

/// A transaction that nobody ends would hold its locks, and end up in the next batch of its connection.
async fn nothing_is_left_open(t: &Fixture) {
    if t.kind == Kind::Postgres {
        let open = "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'";
        wait_until("no transaction is open", Duration::from_secs(20), async || t.raw.number(open).await == 0).await;
    }
}

/// Fails step `first`, then the next, until a run gets through. Gives how many steps there are.
async fn fail_each(t: &Fixture, scenario: Scenario, fault: Fault, first: u64) -> u64 {
    let mut lost = 0;
    for n in first.. {
        let prepared = scenario.prepare(t).await;
        let batch = t.batch(prepared.commands.clone()).await;
        let before = snapshot(t, scenario).await;
        t.store.faults().fail_at(n, fault);
        let store = Arc::clone(&t.store);
        let sent = batch.clone();
        let run = tokio::spawn(async move { store.execute(sent).await }).await;
        let passed = t.store.faults().clear();
        let what = format!("{scenario:?}, {fault:?} at step {n}");
        // A panic leaves open how far it got, and so does a lost answer.
        let unknown = match run {
            Ok(Ok(done)) => {
                assert!(passed, "{what}: the fault was swallowed");
                scenario.verify(t, &prepared, &done.outcomes, false).await;
                t.check().await;
                assert!(fault == Fault::Panic || lost == 1, "{what}: there is one commit, and one answer to lose");
                return n - 1;
            }
            Ok(Err(StoreError::CommitUnknown { .. })) => {
                lost += 1;
                true
            }
            Ok(Err(StoreError::Unavailable { .. })) => false,
            Ok(Err(error @ StoreError::Failed { .. })) => {
                assert!(fault == Fault::Panic && t.kind == Kind::Sqlite, "{what}: {}", error.chain());
                true
            }
            Ok(Err(error)) => panic!("{what}: {}", error.chain()),
            Err(error) => {
                assert!(error.is_panic() && fault == Fault::Panic && t.kind == Kind::Postgres, "{what}: {error}");
                true
            }
        };
        assert!(!passed, "{what}: an error that nobody injected");
        nothing_is_left_open(t).await;
        let after = snapshot(t, scenario).await;
        if unknown {
            t.check().await;
        } else {
            assert_eq!(before, after, "{what}: said that nothing was changed");
        }
        let done = t.execute(Batch { retrying: unknown, ..batch }).await;
        scenario.verify(t, &prepared, &done.outcomes, before != after).await;
        t.check().await;
    }
    unreachable!("a run gets through at last")
}

macro_rules! scenarios {
    ($($name:ident: $scenario:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::every_step(super::Kind::Sqlite, super::Scenario::$scenario).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::every_step(super::Kind::Postgres, super::Scenario::$scenario).await;
            })+
        }
    };
}

scenarios! {
    submit: Submit,
    submit_with_a_key: SubmitKey,
    claim: Claim,
    claim_of_a_limited_queue: ClaimLimited,
    claim_task: ClaimTask,
    heartbeat: Heartbeat,
    complete: Complete,
    complete_with_data: CompleteData,
    fail_and_retry: FailRetry,
    fail_for_good: FailDead,
    cancel_what_waits: CancelReady,
    cancel_what_runs: CancelRunning,
    retry: Retry,
    expire: Expire,
    promote: Promote,
    release: Release,
    redrive: Redrive,
    hello: Hello,
    set_queue: SetQueue,
    pause_queue: PauseQueue,
    delete_queue: DeleteQueue,
    many_at_once: Mixed,
    submit_a_run: SubmitRun,
    complete_in_a_run: CompleteInRun,
    fail_in_a_run: FailInRun,
    cancel_a_run: CancelRun,
}

/// Fails each step of something that is not a batch, and does it again; `done` says whether it had been done before.
async fn until_it_works<T>(t: &Fixture, fault: Fault, mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    for n in 1.. {
        t.store.faults().fail_at(n, fault);
        let answer = ask().await;
        let passed = t.store.faults().clear();
        t.check().await;
        match answer {
            Ok(answer) => {
                assert!(passed, "the fault was swallowed");
                return answer;
            }
            Err(error) => assert!(!passed, "an error that nobody injected: {}", error.chain()),
        }
    }
    unreachable!("it works at last")
}

async fn other_writes(kind: Kind) {
    let t = Fixture::new(kind).await;
    // Without a panic on Postgres, where these run in the caller's own task.
    let faults = if kind == Kind::Sqlite { &[Fault::Error, Fault::Panic][..] } else { &[Fault::Error][..] };
    for (n, fault) in faults.iter().enumerate() {
        let mut numbers = Vec::new();
        for _ in 0..3 {
            let mut block = until_it_works(&t, *fault, async || t.store.reserve_numbers(2).await).await;
            numbers.extend([block.take(), block.take()]);
        }
        assert!(numbers.is_sorted_by(|a, b| a < b), "given once: {numbers:?}");

        t.put_in("q").await;
        let dead = t.claim_one("q").await;
        t.bury(&dead, "X").await;
        let redrive = NewRedrive { redrive_id: n as u128, key: None, filter: RedriveFilter::default(), rate: None };
        let started = until_it_works(&t, *fault, async || t.store.start_redrive(&redrive).await).await;
        assert_eq!((started.redrive_id, started.released), (n as u128, 0));
        assert_eq!(t.store.open_redrives().await.unwrap().len(), n + 1);

        t.put_in("q").await;
        let held = t.claim_one("q").await;
        t.clock.advance_through_outage(600_000);
        until_it_works(&t, *fault, async || t.store.mark_alive().await).await;
        assert_eq!(t.reap().await, 0, "the grace was written, whoever was told");
        assert!(matches!(t.view(held.task).await.place, Place::Running(_)));
        t.complete(&held).await.unwrap();

        t.clock.advance(100);
        let retention = Retention { finished_ms: 100, ..Retention::default() };
        until_it_works(&t, *fault, async || t.store.prune(&retention, Seq(0), 100).await).await;
        assert_eq!(t.queue("q").await.counts.finished, n as i64 + 1, "the dead letters are left");

        until_it_works(&t, *fault, async || t.store.saw_workers(&["q".into()]).await).await;
        assert!(t.store.queue(held.queue).await.unwrap().unwrap().worker_seen_at.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writes_on_sqlite() {
    other_writes(Kind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_writes_on_postgres() {
    other_writes(Kind::Postgres).await;
}

/// What a batch had read of the queues when it failed is forgotten, also what it was about to make of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_was_not_made_after_all_is_made_by_the_next() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let t = Fixture::new(kind).await;
        for n in 1..8 {
            let task = make::task(t.mint().await, &format!("new{n}"));
            let submit = tenure_core::command::submit::Submit { tasks: vec![task.clone()], maker: None };
            let batch = t.batch(vec![tenure_core::command::Command::Submit(submit)]).await;
            t.store.faults().fail_at(n, Fault::Error);
            t.store.execute(batch).await.unwrap_err();
            assert!(!t.store.faults().clear());
            t.put(task.clone()).await;
            assert_eq!(t.claim_ids(&[&task.queue], 1).await, [task.id]);
        }
        t.check().await;
    }
}
