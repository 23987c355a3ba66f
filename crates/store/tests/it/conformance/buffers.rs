//! Batches of rows for buffered datasets.

use tenure_core::command::Answer;
use tenure_core::dag::buffer::{Batch, BatchError, Content, NewPublish, OutsideQueue};
use tenure_core::dag::{DataReport, DatasetId, PublishId};
use tenure_core::effect::EffectKind;
use tenure_core::queue::Transport;
use tenure_store::buffers::{BufferEffect, FOLLOW_UP_MS, PublishState, Settled};

use super::dags::{JOB, ORG, dataset, emit, running};
use crate::common::{Fixture, START};

crate::on_both_stores!(
    a_batch_is_recorded_once,
    batches_of_a_report_are_written_with_it,
    a_batch_is_its_takers_for_a_while,
    what_was_not_tried_was_not_received,
    a_rejected_batch_waits_and_then_dies,
    dead_letters_are_replayed,
    a_message_makes_its_batch_due,
    old_batches_are_forgotten,
);

fn id(n: u128) -> PublishId {
    PublishId::from_u128(n)
}

fn new(n: u128, of: DatasetId) -> NewPublish {
    let content = Content::Records(format!("[{{\"n\":{n}}}]").into());
    let (version, producer, schema_hash, fault) = (None, None, None, None);
    NewPublish::of(id(n), Batch { dataset: of, version, producer, schema_hash, content, outside: false, fault }, None)
}

fn error() -> BatchError {
    BatchError { code: "wrong_type".into(), message: "no".into(), line: Some(2) }
}

async fn ids(t: &Fixture, of: u128) -> Vec<PublishId> {
    t.store.take_publishes(dataset(of), 10, 60_000).await.unwrap().into_iter().map(|row| row.id).collect()
}

async fn a_batch_is_recorded_once(t: &Fixture) {
    t.store.publish(ORG, &[new(1, dataset(7)), new(2, dataset(7))]).await.unwrap();
    let other = NewPublish { digest: "other".into(), ..new(1, dataset(8)) };
    t.store.publish("other", &[other]).await.unwrap();
    let mut found = t.store.publishes(&[id(1), id(9), id(2)]).await.unwrap();
    found.sort_unstable_by_key(|row| row.number);
    assert_eq!(found.iter().map(|row| row.id).collect::<Vec<_>>(), [id(1), id(2)]);
    let first = &found[0];
    assert_eq!((&*first.org, first.dataset, first.receives), (ORG, dataset(7), 0));
    assert_eq!((&first.batch, first.created_at), (&Some(new(1, dataset(7)).batch), START));
    assert_eq!(t.store.buffered_bytes(ORG).await.unwrap(), 2 * new(1, dataset(7)).bytes);
    assert_eq!(t.store.due_buffers(9).await.unwrap(), [(ORG.into(), dataset(7))]);
    assert!(t.store.take_effects(EffectKind::PublishBuffer, "redis", 9, 1).await.unwrap().is_empty());
}

async fn batches_of_a_report_are_written_with_it(t: &Fixture) {
    let grant = running(t).await;
    let data = |n| DataReport { publishes: vec![new(n, dataset(7))], ..DataReport::of(ORG.into(), JOB) };
    assert_eq!(t.run(emit(&grant, &data(1).into())).await, Ok(Answer::Done(true)));
    let mut stale = grant.clone();
    stale.token = tenure_core::LeaseToken::from_u128(9);
    assert!(t.run(emit(&stale, &data(2).into())).await.is_err());
    assert_eq!(ids(t, 7).await, [id(1)], "nothing of a report that does not count");
}

async fn a_batch_is_its_takers_for_a_while(t: &Fixture) {
    t.store.publish(ORG, &[new(1, dataset(7)), new(2, dataset(7)), new(3, dataset(8))]).await.unwrap();
    assert_eq!(ids(t, 7).await, [id(1), id(2)]);
    assert!(ids(t, 7).await.is_empty(), "they are somebody else's");
    assert_eq!(t.store.due_buffers(9).await.unwrap(), [(ORG.into(), dataset(8))]);
    t.clock.advance(60_001);
    let again = t.store.take_publishes(dataset(7), 1, 1).await.unwrap();
    assert_eq!((again[0].id, again[0].receives), (id(1), 2), "its taker has died");
    t.store.settle_publishes(&[(id(1), Settled::Done), (id(2), Settled::Done)]).await.unwrap();
    t.clock.advance(60_001);
    assert!(ids(t, 7).await.is_empty());
    let done = t.store.publishes(&[id(1)]).await.unwrap();
    assert_eq!((&done[0].batch, done[0].state), (&None, PublishState::Done));
    t.store.settle_publishes(&[(id(1), Settled::PutOff { after_ms: 0 })]).await.unwrap();
    assert!(ids(t, 7).await.is_empty(), "what is done stays so");
    t.store.publish(ORG, &[new(1, dataset(7))]).await.unwrap();
    assert!(ids(t, 7).await.is_empty(), "a repeat is not written again");
}

async fn what_was_not_tried_was_not_received(t: &Fixture) {
    t.store.publish(ORG, &[new(1, dataset(7))]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(ids(t, 7).await, [id(1)]);
        t.store.settle_publishes(&[(id(1), Settled::PutOff { after_ms: 10 })]).await.unwrap();
        assert!(ids(t, 7).await.is_empty());
        t.clock.advance(10);
    }
    assert_eq!(t.store.publishes(&[id(1)]).await.unwrap()[0].receives, 0);
}

async fn a_rejected_batch_waits_and_then_dies(t: &Fixture) {
    let queue = OutsideQueue { transport: Transport::Redis, name: "dag::buffer.x".into() };
    t.store.publish(ORG, &[new(1, dataset(7))]).await.unwrap();
    assert_eq!(ids(t, 7).await, [id(1)]);
    t.store.settle_publishes(&[(id(1), Settled::Rejected { error: error(), after_ms: 1_000 })]).await.unwrap();
    assert!(ids(t, 7).await.is_empty());
    t.clock.advance(1_000);
    assert_eq!(ids(t, 7).await, [id(1)]);
    let dead = Settled::Dead { error: error(), receives: 2, queue: Some(queue) };
    t.store.settle_publishes(&[(id(1), dead.clone())]).await.unwrap();
    // A late word of who took it before changes nothing.
    t.store.settle_publishes(&[(id(1), dead), (id(1), Settled::Done)]).await.unwrap();
    t.clock.advance(120_000);
    assert!(ids(t, 7).await.is_empty() && t.store.due_buffers(9).await.unwrap().is_empty());
    assert_eq!(t.store.buffered_bytes(ORG).await.unwrap(), 0);
    let found = t.store.dead_publishes(ORG, dataset(7), 0, 9).await.unwrap().items;
    assert_eq!((found.len(), found[0].id, found[0].receives), (1, id(1), 2));
    assert_eq!((&found[0].error, &found[0].batch), (&Some(error()), &Some(new(1, dataset(7)).batch)));
    let effects = t.store.take_effects(EffectKind::PublishBuffer, "redis", 9, 1).await.unwrap();
    let effects: Vec<_> = effects.iter().map(|effect| BufferEffect::parse(&effect.body).unwrap()).collect();
    assert_eq!(effects, [BufferEffect { id: id(1), is_dead: true, queue: "dag::buffer.x".into() }]);
}

async fn dead_letters_are_replayed(t: &Fixture) {
    let all: Vec<NewPublish> = (1..=5).map(|n| new(n, dataset(7))).collect();
    t.store.publish(ORG, &all).await.unwrap();
    assert_eq!(ids(t, 7).await.len(), 5);
    let dead = |n| (id(n), Settled::Dead { error: error(), receives: 10, queue: None });
    t.store.settle_publishes(&(1..=5).map(dead).collect::<Vec<_>>()).await.unwrap();
    let page = t.store.dead_publishes(ORG, dataset(7), 0, 3).await.unwrap();
    let next = page.next.unwrap().parse().unwrap();
    let rest = t.store.dead_publishes(ORG, dataset(7), next, 3).await.unwrap();
    assert_eq!((page.items.len(), rest.items.len(), rest.next), (3, 2, None));
    assert!(t.store.dead_publishes("other", dataset(7), 0, 9).await.unwrap().items.is_empty());
    // One more waits, one is done, and one has too many rows with it to have any in the object store.
    let mut long = new(12, dataset(8));
    long.batch.content = Content::Records(format!("[{}]", " ".repeat(9_000)).into());
    t.store.publish(ORG, &[new(10, dataset(8)), new(11, dataset(8)), long]).await.unwrap();
    assert_eq!(ids(t, 8).await.len(), 3);
    t.store.settle_publishes(&[(id(11), Settled::Done)]).await.unwrap();
    let open = t.store.open_publishes(0, 4).await.unwrap();
    let rest = t.store.open_publishes(open.next.unwrap().parse().unwrap(), 4).await.unwrap();
    let open: Vec<PublishId> = open.items.iter().chain(&rest.items).map(|row| row.id).collect();
    assert_eq!((open, rest.next), ([1, 2, 3, 4, 5, 10].map(id).to_vec(), None));
    for (org, of) in [("other", 7), (ORG, 8)] {
        assert_eq!(t.store.replay_publishes(org, dataset(of), None).await.unwrap(), 0);
    }
    assert_eq!(t.store.replay_publishes(ORG, dataset(7), Some(&[id(2), id(9)])).await.unwrap(), 1);
    let again = t.store.take_publishes(dataset(7), 9, 60_000).await.unwrap();
    assert_eq!((again.len(), again[0].id, again[0].receives), (1, id(2), 1));
    assert_eq!(t.store.replay_publishes(ORG, dataset(7), None).await.unwrap(), 4);
}

async fn a_message_makes_its_batch_due(t: &Fixture) {
    let queue = OutsideQueue { transport: Transport::Sqs, name: "dag::buffer.x".into() };
    let through = |n| NewPublish { queue: Some(queue.clone()), ..new(n, dataset(7)) };
    t.store.publish(ORG, &[through(1), through(2)]).await.unwrap();
    t.store.publish(ORG, &[through(1)]).await.unwrap();
    assert!(ids(t, 7).await.is_empty(), "they wait for their messages");
    let effects = t.store.take_effects(EffectKind::PublishBuffer, "sqs", 9, 1).await.unwrap();
    let mut told: Vec<_> = effects.iter().map(|effect| BufferEffect::parse(&effect.body).unwrap().id).collect();
    told.sort_unstable();
    assert_eq!(told, [id(1), id(2)], "one message each");
    t.store.wake_publishes(&[id(2), id(9)]).await.unwrap();
    assert_eq!(ids(t, 7).await, [id(2)]);
    t.store.wake_publishes(&[id(2)]).await.unwrap();
    assert!(ids(t, 7).await.is_empty(), "a repeated message takes it from nobody");
    t.clock.advance(FOLLOW_UP_MS);
    assert!(ids(t, 7).await.contains(&id(1)), "a lost message delays it");
}

async fn old_batches_are_forgotten(t: &Fixture) {
    let mut uploaded = new(2, dataset(7));
    uploaded.batch.content = Content::Artifact { uri: "s3://b/p/2.jsonl".into(), bytes: Some(9) };
    t.store.publish(ORG, &[new(1, dataset(7)), uploaded.clone(), new(3, dataset(7))]).await.unwrap();
    ids(t, 7).await;
    let dead = Settled::Dead { error: error(), receives: 10, queue: None };
    t.store.settle_publishes(&[(id(1), Settled::Done), (id(2), dead)]).await.unwrap();
    assert!(t.store.prune_publishes(START, START, 9).await.unwrap().is_empty());
    let later = START.plus(1);
    assert_eq!(t.store.prune_publishes(later, START, 9).await.unwrap(), [None], "what was done needs nothing more");
    assert_eq!(t.store.prune_publishes(later, later, 9).await.unwrap(), [Some(uploaded.batch)]);
    assert!(t.store.prune_publishes(later, later, 9).await.unwrap().is_empty(), "what waits stays");
    assert_eq!(t.store.publishes(&[id(1), id(2), id(3)]).await.unwrap().len(), 1);
}
