//! Every step of a change of sandboxes fails once. A placement leaves a row with its lease, or nothing; so does each other
//! change.

use std::sync::Arc;

use tenure_core::command::Reach;
use tenure_core::sandbox::Change;
use tenure_core::sandbox::placement::Rules;
use tenure_core::sandbox::state::State;
use tenure_store::{Fault, NewSandbox, NewSandboxEvent, Placed, SnapshotRow, Store, StoreError};

use super::nothing_is_left_open;
use crate::common::{Fixture, Kind};
use crate::conformance::sandboxes::{
    LEASE, NO_CAPS, beat, check, confirm, destroy, id, new, placed, queued, room_for, row, running, told, worker,
};

#[derive(Debug, Clone, Copy)]
enum Work {
    Place,
    Wait,
    PlaceAgain,
    Confirm,
    Destroy,
    Claim,
    Beat,
    RecordSnapshot,
    DeleteSnapshot,
}

async fn tables(t: &Fixture) -> Vec<(&'static str, Vec<String>)> {
    const TABLES: [&str; 8] = [
        "sandboxes",
        "sandbox_workers",
        "spawn_queue",
        "sandbox_keys",
        "sandbox_events",
        "sandbox_snapshots",
        "snapshot_pieces",
        "leases",
    ];
    let mut all = Vec::new();
    for table in TABLES {
        let rows = t.raw.rows(&format!("SELECT * FROM {table}")).await;
        let mut rows: Vec<_> = rows.iter().map(|row| format!("{row:?}")).collect();
        rows.sort_unstable();
        all.push((table, rows));
    }
    all
}

fn warm(number: u32) -> NewSandbox {
    NewSandbox { pool: Some(format!("pool-{number}").into()), owner: None, ..new(number) }
}

fn with_key(number: u32, make: impl Fn(u32) -> NewSandbox) -> NewSandbox {
    let key = Some((format!("key-{number}").into(), [1; 32]));
    NewSandbox { key, told: |row| vec![told("k", row)], ..make(number) }
}

fn snapshot(number: u32) -> SnapshotRow {
    SnapshotRow {
        id: format!("snap-{number}").into(),
        tenant: "acme".into(),
        owner: None,
        name: "n".into(),
        sandbox: id(number),
        image: "i".into(),
        provider: "process".into(),
        size_bytes: 3,
        sha256: String::new(),
        created_at: tenure_core::Timestamp::MIN,
    }
}

/// What the work needs. Each round has a number of its own.
async fn prepare(t: &Fixture, work: Work, number: u32) {
    match work {
        Work::Place | Work::Beat => {}
        Work::Wait => {
            // A worker of its own, which is full.
            worker(t, room_for(1, "worker-a")).await;
            if number == 1 {
                placed(t, new(100_000)).await;
            }
        }
        Work::PlaceAgain => {
            worker(t, room_for(1, "worker-a")).await;
            let before = number + 100_000;
            placed(t, new(before)).await;
            let waits = t.store.place_sandbox(queued(number), NO_CAPS, &Rules::default()).await.unwrap();
            assert!(matches!(waits, Ok(Placed::Queued(_))));
            t.store.change_sandbox(&id(before), &destroy(), Vec::new()).await.unwrap();
        }
        Work::Confirm => drop(placed(t, new(number)).await),
        Work::Destroy => drop(running(t, number).await),
        Work::Claim => {
            let (row, ..) = placed(t, warm(number)).await;
            t.store.change_sandbox(&id(number), &confirm(&row), Vec::new()).await.unwrap();
        }
        Work::RecordSnapshot | Work::DeleteSnapshot => {
            t.store.put_snapshot_piece(&snapshot(number).id, 0, b"abc".to_vec()).await.unwrap();
            if matches!(work, Work::DeleteSnapshot) {
                t.store.record_snapshot(&snapshot(number)).await.unwrap();
            }
        }
    }
}

fn event(number: u32) -> NewSandboxEvent {
    NewSandboxEvent { kind: "k", sandbox: Some(id(number)), tenant: None, owner: None, data: "{}".into() }
}

async fn run(store: Arc<dyn Store>, work: Work, number: u32) -> Result<(), StoreError> {
    let rules = Rules::default();
    match work {
        Work::Place => drop(store.place_sandbox(with_key(number, new), NO_CAPS, &rules).await?.unwrap()),
        Work::Wait => drop(store.place_sandbox(with_key(number, queued), NO_CAPS, &rules).await?.unwrap()),
        Work::PlaceAgain => drop(store.place_again(&id(number), LEASE, NO_CAPS, &rules).await?.unwrap()),
        Work::Confirm => {
            let confirm = Change::Confirm { worker: "worker-a".into(), runtime_id: "rt".into() };
            let changed = store.change_sandbox(&id(number), &confirm, vec![event(number)]).await?.unwrap();
            assert!(changed.is_ok() || changed.unwrap_err() == tenure_core::sandbox::Refused::State(State::Running));
        }
        Work::Destroy => drop(store.change_sandbox(&id(number), &destroy(), vec![event(number)]).await?.unwrap()),
        Work::Claim => {
            let claim =
                Change::Claim { tenant: "acme".into(), owner: Some("ann".into()), ttl_ms: 1, metadata: Vec::new() };
            let key = Some((format!("key-{number}").into(), [1; 32]));
            store
                .claim_warm(&format!("pool-{number}"), &claim, key, NO_CAPS, &rules, |row| vec![told("k", row)])
                .await?
                .unwrap()
                .unwrap();
        }
        Work::Beat => drop(store.worker_beat(&beat(&format!("worker-{number}"))).await?),
        Work::RecordSnapshot => {
            if store.snapshot(&snapshot(number).id, &Reach::All).await?.is_none() {
                store.record_snapshot(&snapshot(number)).await?;
            }
        }
        Work::DeleteSnapshot => drop(store.delete_snapshot(&snapshot(number).id, &Reach::All).await?),
    }
    Ok(())
}

/// What must be true once it was done.
async fn verify(t: &Fixture, work: Work, number: u32) {
    let lease = t.store.sandbox_lease(&id(number)).await.unwrap();
    let events = format!("SELECT count(*) FROM sandbox_events WHERE sandbox_id = '{}'", id(number));
    match work {
        Work::Place | Work::PlaceAgain => {
            let row = row(t, number).await;
            assert_eq!(row.worker, lease.map(|lease| lease.lease.holder));
            assert!(row.worker.is_some());
            let heard = if matches!(work, Work::Place) { 1 } else { 0 };
            assert_eq!(t.raw.number(&events).await, heard);
        }
        Work::Wait => {
            assert!(row(t, number).await.is_queued());
            assert_eq!(t.raw.number(&events).await, 1, "once");
        }
        Work::Confirm => {
            assert_eq!(row(t, number).await.state, State::Running);
            assert_eq!(t.raw.number(&events).await, 1, "once");
        }
        Work::Destroy => {
            assert_eq!((row(t, number).await.state, lease), (State::Destroyed, None));
            assert_eq!(t.raw.number(&events).await, 1, "once");
        }
        Work::Claim => {
            assert_eq!(row(t, number).await.owner.as_deref(), Some("ann"));
            assert_eq!(t.raw.number(&events).await, 1, "once");
        }
        Work::Beat => assert!(t.store.sandbox_worker(&format!("worker-{number}")).await.unwrap().is_some()),
        Work::RecordSnapshot => assert!(t.store.snapshot(&snapshot(number).id, &Reach::All).await.unwrap().is_some()),
        Work::DeleteSnapshot => {
            assert_eq!(t.store.snapshot(&snapshot(number).id, &Reach::All).await.unwrap(), None);
            assert_eq!(t.store.snapshot_piece(&snapshot(number).id, 0).await.unwrap(), None);
        }
    }
    check(t).await;
}

async fn every_step(kind: Kind, work: Work) {
    let t = Fixture::new(kind).await;
    worker(&t, beat("worker-a")).await;
    let mut number = 0;
    let mut steps = Vec::new();
    // On Postgres a panic ends the caller's task and closes its connection, whatever the step.
    let with_panic = kind == Kind::Sqlite || matches!(work, Work::Place);
    let faults = if with_panic { &[Fault::Error, Fault::Panic][..] } else { &[Fault::Error][..] };
    for fault in faults.iter().copied() {
        for n in 1.. {
            number += 1;
            prepare(&t, work, number).await;
            let before = tables(&t).await;
            t.store.faults().fail_at(n, fault);
            let answer = tokio::spawn(run(Arc::clone(&t.store), work, number)).await;
            let passed = t.store.faults().clear();
            let what = format!("{work:?}, {fault:?} at step {n}");
            nothing_is_left_open(&t).await;
            let after = tables(&t).await;
            match answer {
                Ok(Ok(())) => {
                    assert!(passed, "{what}: the fault was swallowed");
                    verify(&t, work, number).await;
                    steps.push(n - 1);
                    break;
                }
                Ok(Err(StoreError::Unavailable { .. })) => assert_eq!(before, after, "{what}"),
                Ok(Err(StoreError::CommitUnknown { .. })) => assert_ne!(before, after, "{what}: it was committed"),
                Ok(Err(error @ StoreError::Failed { .. })) => {
                    assert!(fault == Fault::Panic && kind == Kind::Sqlite, "{what}: {}", error.chain());
                }
                Ok(Err(error)) => panic!("{what}: {}", error.chain()),
                Err(error) => assert!(error.is_panic() && fault == Fault::Panic, "{what}: {error}"),
            }
            assert!(!passed, "{what}: an error that nobody injected");
            check(&t).await;
            run(Arc::clone(&t.store), work, number).await.unwrap_or_else(|error| panic!("{what}: {}", error.chain()));
            verify(&t, work, number).await;
            if matches!(work, Work::PlaceAgain | Work::Place) {
                t.store.change_sandbox(&id(number), &destroy(), Vec::new()).await.unwrap();
            }
        }
        if matches!(work, Work::PlaceAgain) {
            t.store.change_sandbox(&id(number), &destroy(), Vec::new()).await.unwrap();
        }
    }
    assert!(steps[0] >= 4 && steps.iter().all(|count| *count == steps[0]), "{work:?} on {kind:?}: {steps:?}");
}

macro_rules! works {
    ($($name:ident: $work:ident,)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::every_step(super::Kind::Sqlite, super::Work::$work).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::every_step(super::Kind::Postgres, super::Work::$work).await;
            })+
        }
    };
}

works! {
    place: Place,
    wait_for_room: Wait,
    place_again: PlaceAgain,
    confirm: Confirm,
    destroy: Destroy,
    claim: Claim,
    beat: Beat,
    record_a_snapshot: RecordSnapshot,
    delete_a_snapshot: DeleteSnapshot,
}
