//! Facts for those who watch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::attempt::Reason;
use tenure_core::command::cancel::Mode;
use tenure_core::command::submit::NewTask;
use tenure_core::event::{Fact, FactKind};
use tenure_core::task::State;
use tenure_testkit::wait_until;

use crate::common::{Fixture, Kind, START, after_start, case, make};

crate::on_both_stores!(
    a_life_is_told_in_order,
    the_facts_of_a_batch_stand_together,
    what_changes_nothing_tells_nothing,
    one_reads_on_from_where_one_was,
    numbers_grow_without_gaps_while_nothing_fails,
);

async fn facts(t: &Fixture) -> Vec<Fact> {
    t.store.events(0, 1_000).await.unwrap().into_iter().flat_map(|batch| batch.facts).collect()
}

async fn a_life_is_told_in_order(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    let first = t.claim_one("q").await;
    t.run(make::fail(&first, "X", None)).await.unwrap();
    t.claim_one("q").await;
    t.clock.advance(60_000);
    t.reap().await;
    t.run(make::retry(id)).await.unwrap();
    t.claim_one("q").await;
    t.run(make::cancel(id, Mode::Cooperative)).await.unwrap();
    t.run(make::cancel(id, Mode::Immediate)).await.unwrap();

    let told: Vec<_> =
        facts(t).await.into_iter().map(|fact| (fact.kind, fact.state, fact.attempt, fact.reason)).collect();
    let expected = [
        (FactKind::Submitted, State::Ready, 0, None),
        (FactKind::Started, State::Running, 1, None),
        (FactKind::Retrying, State::Ready, 1, Some(Reason::Failed)),
        (FactKind::Started, State::Running, 2, None),
        (FactKind::Failed, State::Failed, 2, Some(Reason::HeartbeatTimeout)),
        (FactKind::DeadLettered, State::Failed, 2, Some(Reason::HeartbeatTimeout)),
        (FactKind::Retried, State::Ready, 2, None),
        (FactKind::Started, State::Running, 3, None),
        (FactKind::CancelRequested, State::Running, 3, None),
        (FactKind::Canceled, State::Canceled, 3, Some(Reason::Revoked)),
    ];
    assert_eq!(told, expected);
    assert!(facts(t).await.iter().all(|fact| fact.task == id && fact.queue == first.queue));
    let times: Vec<_> = t.store.events(0, 1_000).await.unwrap().iter().map(|batch| batch.at).collect();
    assert_eq!((times[0], times[times.len() - 1]), (START, after_start(60_000)));
    assert!(times.is_sorted());
}

async fn the_facts_of_a_batch_stand_together(t: &Fixture) {
    let ids = t.put_many("q", 3).await;
    let grants = t.claim(&["q"], 3).await;
    let commands = grants.iter().rev().map(|grant| make::complete(grant, "1")).collect();
    let done = t.execute(t.batch(commands).await).await;
    assert_eq!(done.facts, HashMap::from([(FactKind::Succeeded, 3)]));
    let batches = t.store.events(0, 10).await.unwrap();
    assert_eq!(batches.iter().map(|batch| batch.facts.len()).collect::<Vec<_>>(), [3, 3, 3]);
    let order: Vec<_> = batches[2].facts.iter().map(|fact| fact.task).collect();
    assert_eq!(order, ids.into_iter().rev().collect::<Vec<_>>());
}

async fn what_changes_nothing_tells_nothing(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    let bounds = t.store.event_bounds().await.unwrap();
    t.run(make::heartbeat(&grant)).await.unwrap();
    t.claim(&["q"], 1).await;
    let mut stolen = grant.clone();
    stolen.token = tenure_core::LeaseToken::from_u128(1);
    t.complete(&stolen).await.unwrap_err();
    assert!(t.execute(t.batch(vec![make::heartbeat(&grant)]).await).await.facts.is_empty());
    assert_eq!(t.store.event_bounds().await.unwrap(), bounds);
}

async fn one_reads_on_from_where_one_was(t: &Fixture) {
    assert_eq!(t.store.event_bounds().await.unwrap(), (0, 0));
    for _ in 0..5 {
        t.put_in("q").await;
    }
    let all: Vec<_> = t.store.events(0, 10).await.unwrap().iter().map(|batch| batch.batch).collect();
    assert_eq!(t.store.event_bounds().await.unwrap(), (all[0], all[4]));
    let (mut after, mut read) = (0, Vec::new());
    loop {
        let some = t.store.events(after, 2).await.unwrap();
        let Some(last) = some.last() else { break };
        after = last.batch;
        read.extend(some.iter().map(|batch| batch.batch));
    }
    assert_eq!((read, all.is_sorted()), (all, true));
}

/// Whoever reads along while others write waits for the batch that is missing between two others: on Postgres it may
/// still be on its way. So every number must come, and every fact with it.
async fn numbers_grow_without_gaps_while_nothing_fails(t: &Fixture) {
    let writing = Arc::new(AtomicBool::new(true));
    let reader = {
        let (client, writing) = (t.client(), Arc::clone(&writing));
        tokio::spawn(async move {
            let (mut after, mut seen) = (0, Vec::new());
            loop {
                let last_look = !writing.load(Ordering::SeqCst);
                for batch in client.store.events(after, 100).await.unwrap() {
                    if batch.batch != after + 1 {
                        assert!(!last_look, "batch {} never came", after + 1);
                        break;
                    }
                    after = batch.batch;
                    seen.extend(batch.facts.iter().map(|fact| fact.task));
                }
                if last_look {
                    return seen;
                }
            }
        })
    };
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let client = t.client();
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..12 {
                    ids.push(client.put_in("q").await);
                }
                ids
            })
        })
        .collect();
    let mut put = HashSet::new();
    for writer in writers {
        put.extend(writer.await.unwrap());
    }
    writing.store(false, Ordering::SeqCst);
    let seen = reader.await.unwrap();
    assert_eq!(seen.len(), put.len(), "each once");
    assert_eq!(seen.into_iter().collect::<HashSet<_>>(), put);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_batch_can_come_until_its_transaction_has_ended() {
    case(Kind::Postgres, a_missing_batch_can_come).await;
}

async fn a_missing_batch_can_come(t: &Fixture) {
    t.put_in("q").await;
    t.raw.execute("BEGIN; INSERT INTO events (at, facts) SELECT at, facts FROM events").await;
    t.put_in("q").await;
    let numbers = async || t.store.events(0, 10).await.unwrap().iter().map(|batch| batch.batch).collect::<Vec<_>>();
    assert_eq!(numbers().await, [1, 3]);
    let noted = t.store.event_horizon().await.unwrap();
    t.put_in("q").await;
    assert!(t.store.event_horizon().await.unwrap().oldest < noted.next, "it is still open");
    t.raw.execute("COMMIT").await;
    // Transactions of other databases count too.
    let ended = async || t.store.event_horizon().await.unwrap().oldest >= noted.next;
    wait_until("all transactions of that time have ended", Duration::from_secs(60), ended).await;
    assert_eq!(numbers().await, [1, 2, 3, 4]);
}
