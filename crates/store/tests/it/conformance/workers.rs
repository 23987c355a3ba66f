//! Records of workers.

use std::sync::Arc;

use tenure_core::Seq;
use tenure_core::command::Reach;
use tenure_store::{Retention, Sighting, WORKER_RECORDS_MAX, WorkerDetails, WorkerRecord};

use crate::common::make::claim;
use crate::common::{Fixture, START, after_start};

crate::on_both_stores!(
    what_was_not_said_again_stays,
    records_have_what_their_workers_hold,
    a_drain_stays_until_it_is_taken_back,
    records_are_bounded_and_expire,
);

fn seen(worker: &str) -> Sighting {
    Sighting { worker: worker.into(), contracts: vec!["pull"], queues: Vec::new(), details: None, ago_ms: 0 }
}

fn details() -> WorkerDetails {
    WorkerDetails {
        hostname: Some("h".into()),
        version: Some("v/1".into()),
        slots: Some(8),
        operators: vec!["echo".into()],
        clock_ahead_ms: Some(-7),
    }
}

async fn names(t: &Fixture) -> Vec<Arc<str>> {
    t.store.worker_records("", 10).await.unwrap().items.into_iter().map(|record| record.worker).collect()
}

async fn what_was_not_said_again_stays(t: &Fixture) {
    let first = Sighting { queues: vec!["q".into(), "r".into()], details: Some(details()), ..seen("w") };
    t.store.note_workers(&[seen("v"), first]).await.unwrap();
    t.clock.advance(5_000);
    // One that was seen before the last note does not go back in time.
    t.store.note_workers(&[Sighting { ago_ms: 60_000, ..seen("w") }]).await.unwrap();
    let record = WorkerRecord {
        worker: "w".into(),
        contracts: vec!["pull".into()],
        queues: vec!["q".into(), "r".into()],
        details: details(),
        first_seen_at: START,
        seen_at: START,
        drained_at: None,
        drain_reason: None,
        held: 0,
    };
    assert_eq!(t.store.worker_record("w").await.unwrap(), Some(record.clone()));
    let again = Sighting { contracts: vec!["dispatch", "pull"], queues: vec!["s".into()], ago_ms: 1_000, ..seen("w") };
    t.store.note_workers(&[again]).await.unwrap();
    let expected = WorkerRecord {
        contracts: vec!["dispatch".into(), "pull".into()],
        queues: vec!["s".into()],
        seen_at: after_start(4_000),
        ..record
    };
    assert_eq!(t.store.worker_record("w").await.unwrap(), Some(expected));
    assert_eq!(t.store.worker_record("nobody").await.unwrap(), None);
    let page = t.store.worker_records("", 1).await.unwrap();
    assert_eq!((&*page.items[0].worker, page.next.as_deref()), ("v", Some("v")));
    let page = t.store.worker_records("v", 1).await.unwrap();
    assert_eq!((&*page.items[0].worker, page.next), ("w", None));
}

async fn records_have_what_their_workers_hold(t: &Fixture) {
    t.put_many("q", 3).await;
    let grants = t.claimed(claim("w", &["q"], 2)).await.grants;
    t.store.note_workers(&[seen("w"), seen("x")]).await.unwrap();
    let held: Vec<_> = t.store.worker_records("", 9).await.unwrap().items.iter().map(|record| record.held).collect();
    assert_eq!(held, [2, 0]);
    assert_eq!(t.store.worker_record("w").await.unwrap().unwrap().held, 2);
    let tasks = t.store.held_tasks("w", &Reach::All, 9).await.unwrap();
    assert_eq!(tasks.iter().map(|held| held.task).collect::<Vec<_>>(), [grants[0].task, grants[1].task]);
    assert_eq!((&*tasks[0].queue, tasks[0].attempt, tasks[0].expires_at), ("q", 1, grants[0].expires_at));
    assert_eq!(t.store.held_tasks("w", &Reach::All, 1).await.unwrap().len(), 1);
    assert!(t.store.held_tasks("x", &Reach::All, 9).await.unwrap().is_empty());
    assert!(t.store.held_tasks("w", &Reach::Tenant("another".into()), 9).await.unwrap().is_empty());
}

async fn a_drain_stays_until_it_is_taken_back(t: &Fixture) {
    assert!(!t.store.drain_worker("w", true, None).await.unwrap(), "it is not known");
    t.store.note_workers(&[seen("v"), seen("w")]).await.unwrap();
    assert!(t.store.drain_worker("w", true, Some("upgrade")).await.unwrap());
    t.clock.advance(5_000);
    t.store.note_workers(&[seen("w")]).await.unwrap();
    let record = t.store.worker_record("w").await.unwrap().unwrap();
    assert_eq!((record.drained_at, record.drain_reason.as_deref()), (Some(START), Some("upgrade")));
    assert_eq!(t.store.drained_workers().await.unwrap(), [Arc::from("w")]);
    assert!(t.store.drain_worker("w", false, Some("no matter")).await.unwrap());
    let record = t.store.worker_record("w").await.unwrap().unwrap();
    assert_eq!((record.drained_at, record.drain_reason), (None, None));
    assert!(t.store.drained_workers().await.unwrap().is_empty());
}

async fn records_are_bounded_and_expire(t: &Fixture) {
    t.store.note_workers(&[seen("a"), seen("b")]).await.unwrap();
    t.store.drain_worker("a", true, None).await.unwrap();
    t.clock.advance(1);
    let many: Vec<_> = (0..WORKER_RECORDS_MAX).map(|n| seen(&format!("w{n:05}"))).collect();
    t.store.note_workers(&many).await.unwrap();
    // The oldest gives way, unless it is drained.
    assert_eq!(names(t).await[..2], [Arc::from("a"), Arc::from("w00000")]);
    t.clock.advance(24 * 3_600_000 + 1_000);
    t.store.note_workers(&[seen("w00007")]).await.unwrap();
    t.store.prune(&Retention::default(), Seq(0), WORKER_RECORDS_MAX + 1).await.unwrap();
    assert_eq!(names(t).await, [Arc::from("w00007")]);
}
