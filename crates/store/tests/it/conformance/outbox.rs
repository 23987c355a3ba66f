//! Wake-ups that leave the process: written with the change that causes them, and gone with the one that ends them.

use std::collections::HashMap;
use std::sync::Arc;

use tenure_core::Seq;
use tenure_core::command::claim::{ClaimTask, NotGranted, NotGrantedReason};
use tenure_core::command::submit::Submit;
use tenure_core::command::{Answer, Command};
use tenure_core::effect::EffectKind;
use tenure_core::queue::Transport;
use tenure_core::task::{End, Spec};
use tenure_store::{
    Batch, DueEffect, MAKERS_OWN_MS, NextTry, OutboxFilter, OutboxLag, OutboxRetry, OutboxState, OutboxView, PutOff,
    Settled,
};

use crate::common::{Fixture, after_start, make};
use crate::on_both_stores;

on_both_stores!(
    a_ready_task_has_a_wake_up_from_its_enqueue_to_its_end,
    a_batch_that_is_sent_again_writes_its_effects_once,
    an_embedded_queue_writes_none,
    a_new_queue_gets_the_default,
    a_retry_ends_one_wake_up_and_writes_another,
    a_crash_of_the_maker_strands_none,
    a_row_in_hand_is_nobody_elses_until_its_time_is_over,
    takers_at_the_same_time_share_nothing,
    only_the_transport_that_is_asked_for_is_taken,
    what_ended_before_it_was_published_is_said_to_be_gone,
    a_grant_says_how_its_wake_up_is_called,
    a_claim_by_id_says_whether_the_message_may_go,
    a_refused_row_waits_and_fails_in_the_end,
    an_absent_transport_does_not_count_as_a_try,
    failed_rows_are_tried_again_when_somebody_says_so,
    the_lag_is_told,
    lists_go_page_by_page,
    a_change_of_transport_leaves_nobody_without_a_wake_up,
    what_is_lost_is_published_again,
    what_messages_stand_for_is_told,
);

const HOLD: i64 = 30_000;

async fn external(t: &Fixture) {
    t.store.set_default_transport(Transport::Redis);
}

async fn rows(t: &Fixture) -> Vec<OutboxView> {
    t.store.outbox(&OutboxFilter { limit: 1_000, ..OutboxFilter::default() }).await.unwrap().items
}

async fn take(t: &Fixture) -> Vec<DueEffect> {
    t.store.take_effects(EffectKind::EnqueueTask, "redis", 100, HOLD).await.unwrap()
}

/// Publishes what waits, however fresh, under names made from its number.
async fn publish(t: &Fixture) {
    let waiting = rows(t).await.into_iter().filter(|row| row.state() == OutboxState::Waiting);
    let published: Vec<_> = waiting.map(|row| (row.message, name(row.message))).collect();
    assert!(t.store.outbox_published(&published).await.unwrap().is_empty());
}

fn name(message: i64) -> Arc<str> {
    format!("{message}-0").into()
}

async fn a_ready_task_has_a_wake_up_from_its_enqueue_to_its_end(t: &Fixture) {
    external(t).await;
    let task = t.task("q").await;
    let done = t.execute(t.batch(vec![Command::Submit(Submit { tasks: vec![task.clone()], maker: None })]).await).await;
    let row = rows(t).await.remove(0);
    assert_eq!((row.task, &*row.queue, row.transport, &*row.kind), (task.id, "q", Transport::Redis, "enqueue_task"));
    assert_eq!((row.state(), row.tries, row.due_at), (OutboxState::Waiting, 0, Some(after_start(MAKERS_OWN_MS))));
    let item = DueEffect {
        id: row.message,
        kind: EffectKind::EnqueueTask,
        key: "redis".into(),
        body: format!("{:032x}", task.id.as_u128()).into(),
        queue: Some("q".into()),
        tries: 0,
    };
    assert_eq!(done.effects, [item], "whoever made it is told, to publish it at once");

    publish(t).await;
    let grant = t.claim_one("q").await;
    assert_eq!(grant.message, row.message);
    assert_eq!(rows(t).await[0].receipt, Some(name(row.message)), "held under the same message");
    let done = t.execute(t.batch(vec![make::complete(&grant, "1")]).await).await;
    assert!(rows(t).await.is_empty());
    let settled = Settled {
        message: row.message,
        queue: "q".into(),
        transport: Transport::Redis,
        receipt: Some(name(row.message)),
    };
    assert_eq!(done.settled, [settled]);
}

/// A row is known by what caused it. Of a batch whose commit got no answer there is one, however often it is sent.
async fn a_batch_that_is_sent_again_writes_its_effects_once(t: &Fixture) {
    external(t).await;
    let tasks = t.tasks("q", 3).await;
    let batch = t.batch(vec![Command::Submit(Submit { tasks, maker: None })]).await;
    let first = t.execute(batch.clone()).await;
    let written = rows(t).await;
    assert_eq!(written.iter().map(|row| row.message).collect::<Vec<_>>(), ids(&first.effects));
    t.execute(Batch { retrying: true, ..batch.clone() }).await;
    assert_eq!(rows(t).await, written);
    // The same batch on a store that never saw it makes the same ids.
    let other = Fixture::new(t.kind).await;
    external(&other).await;
    assert_eq!(ids(&other.execute(batch).await.effects), ids(&first.effects));
}

fn ids(effects: &[DueEffect]) -> Vec<i64> {
    effects.iter().map(|effect| effect.id).collect()
}

async fn an_embedded_queue_writes_none(t: &Fixture) {
    let done = {
        let submit = Submit { tasks: vec![t.task("q").await], maker: None };
        t.execute(t.batch(vec![Command::Submit(submit)]).await).await
    };
    assert!(done.effects.is_empty() && rows(t).await.is_empty());
    let grant = t.claim_one("q").await;
    assert_eq!((grant.transport, &grant.receipt), (Transport::Embedded, &None));
    let done = t.execute(t.batch(vec![make::complete(&grant, "1")]).await).await;
    assert!(done.settled.is_empty());
}

async fn a_new_queue_gets_the_default(t: &Fixture) {
    t.put_in("before").await;
    t.store.set_default_transport(Transport::Sqs);
    t.put_in("after").await;
    t.put_in("before").await;
    assert_eq!(t.queue("before").await.queue.transport, Transport::Embedded);
    assert_eq!(t.queue("after").await.queue.transport, Transport::Sqs);
    assert_eq!(rows(t).await.len(), 1);
}

async fn a_retry_ends_one_wake_up_and_writes_another(t: &Fixture) {
    external(t).await;
    t.put(tenure_core::command::submit::NewTask { spec: make::attempts(3), ..t.task("q").await }).await;
    publish(t).await;
    let first = t.claim_one("q").await;
    let done = t.execute(t.batch(vec![make::fail(&first, "HTTP_503", Some(true))]).await).await;
    assert_eq!(done.settled.len(), 1);
    // With no back-off it may be ready at once, or due now.
    t.promote().await;
    let row = rows(t).await.remove(0);
    assert!(row.message != first.message && row.state() == OutboxState::Waiting, "{row:?}");
    // Expiry does the same.
    publish(t).await;
    let second = t.claim_one("q").await;
    t.clock.advance(61_000);
    t.store.mark_alive().await.unwrap();
    t.clock.advance(61_000);
    assert_eq!(t.reap().await, 1);
    t.promote().await;
    assert!(rows(t).await.iter().all(|row| row.message != second.message));
    assert_eq!(rows(t).await.len(), 1);
}

async fn a_crash_of_the_maker_strands_none(t: &Fixture) {
    external(t).await;
    t.put_in("q").await;
    assert!(take(t).await.is_empty(), "for a while it is its maker's");
    t.clock.advance(MAKERS_OWN_MS);
    assert_eq!(take(t).await.len(), 1);
}

async fn a_row_in_hand_is_nobody_elses_until_its_time_is_over(t: &Fixture) {
    external(t).await;
    t.put_in("q").await;
    t.clock.advance(MAKERS_OWN_MS);
    assert_eq!(take(t).await.len(), 1);
    t.clock.advance(HOLD - 1);
    assert!(take(t).await.is_empty());
    t.clock.advance(1);
    assert_eq!(take(t).await.len(), 1);
    publish(t).await;
    t.clock.advance(10 * HOLD);
    assert!(take(t).await.is_empty(), "what was published is not taken again");
}

async fn takers_at_the_same_time_share_nothing(t: &Fixture) {
    external(t).await;
    t.put_many("q", 400).await;
    t.clock.advance(MAKERS_OWN_MS);
    let takers = (0..8).map(|_| {
        let store = Arc::clone(&t.store);
        tokio::spawn(async move {
            let mut all = Vec::new();
            loop {
                let taken = store.take_effects(EffectKind::EnqueueTask, "redis", 20, HOLD).await.unwrap();
                if taken.is_empty() {
                    return all;
                }
                all.extend(taken.into_iter().map(|item| item.id));
            }
        })
    });
    let mut all = Vec::new();
    for taker in takers.collect::<Vec<_>>() {
        all.extend(taker.await.unwrap());
    }
    // One that found only rows which others were just taking stops early; the rest are still there.
    all.extend(take(t).await.into_iter().map(|item| item.id));
    all.sort_unstable();
    let taken = all.len();
    all.dedup();
    assert_eq!((taken, all.len()), (400, 400));
}

async fn only_the_transport_that_is_asked_for_is_taken(t: &Fixture) {
    external(t).await;
    t.put_in("on-redis").await;
    t.store.set_default_transport(Transport::Sqs);
    t.put_in("on-sqs").await;
    t.clock.advance(MAKERS_OWN_MS);
    let taken = t.store.take_effects(EffectKind::EnqueueTask, "sqs", 10, HOLD).await.unwrap();
    assert_eq!(taken.iter().map(|item| item.queue.as_deref()).collect::<Vec<_>>(), [Some("on-sqs")]);
}

async fn what_ended_before_it_was_published_is_said_to_be_gone(t: &Fixture) {
    external(t).await;
    t.put_many("q", 2).await;
    let [first, second] = <[OutboxView; 2]>::try_from(rows(t).await).unwrap();
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    let published = [(first.message, name(1)), (second.message, name(2))];
    let gone = t.store.outbox_published(&published).await.unwrap();
    assert_eq!(gone, [grant.message]);
}

async fn a_grant_says_how_its_wake_up_is_called(t: &Fixture) {
    external(t).await;
    t.put_many("q", 2).await;
    let before = t.claim_one("q").await;
    assert_eq!((before.transport, before.receipt), (Transport::Redis, None), "not published yet");
    publish(t).await;
    let grant = t.claim_one("q").await;
    assert_eq!((grant.transport, grant.receipt), (Transport::Redis, Some(name(grant.message))));
}

async fn a_claim_by_id_says_whether_the_message_may_go(t: &Fixture) {
    external(t).await;
    let id = t.put_in("q").await;
    let ask = async |message: Option<&str>| {
        let claimer = make::claimer("other");
        match t.run(Command::ClaimTask(ClaimTask { claimer, task: id, message: message.map(Into::into) })).await {
            Ok(Answer::NotGranted(NotGranted { reason, ack, .. })) => (reason, ack),
            other => panic!("{other:?}"),
        }
    };
    let grant = t.claim_one("q").await;
    assert_eq!(ask(Some("77-0")).await, (NotGrantedReason::AlreadyRunning, false), "it may be the one under way");
    publish(t).await;
    let live = name(grant.message);
    assert_eq!(ask(Some(&live)).await, (NotGrantedReason::AlreadyRunning, false));
    assert_eq!(ask(Some(&grant.message.to_string())).await, (NotGrantedReason::AlreadyRunning, false));
    assert_eq!(ask(Some("77-0")).await, (NotGrantedReason::AlreadyRunning, true), "an older one");
    assert_eq!(ask(None).await, (NotGrantedReason::AlreadyRunning, false));
    t.complete(&grant).await.unwrap();
    assert_eq!(ask(Some(&live)).await, (NotGrantedReason::Ended(End::Succeeded), true));
    // While a task waits, any message for it may be the one that wakes somebody.
    let id = t.put_in("q").await;
    publish(t).await;
    t.pause("q", true).await;
    let claim = ClaimTask { claimer: make::claimer("other"), task: id, message: Some("77-0".into()) };
    match t.run(Command::ClaimTask(claim)).await {
        Ok(Answer::NotGranted(not)) => assert_eq!((not.reason, not.ack), (NotGrantedReason::NotDue, false)),
        other => panic!("{other:?}"),
    }
}

async fn a_refused_row_waits_and_fails_in_the_end(t: &Fixture) {
    external(t).await;
    t.put_many("q", 2).await;
    let [row, other] = <[OutboxView; 2]>::try_from(rows(t).await).unwrap();
    let put_off = async |next| {
        let rows = [PutOff { id: row.message, error: "no such queue".to_owned(), next }];
        t.store.put_off_effects(&rows).await.unwrap();
    };
    put_off(NextTry::Refused { after_ms: 60_000 }).await;
    t.clock.advance(MAKERS_OWN_MS);
    let taken: Vec<_> = take(t).await.into_iter().map(|item| item.id).collect();
    assert_eq!(taken, [other.message], "the others go on");
    t.clock.advance(60_000);
    let taken = take(t).await;
    let again = taken.iter().find(|item| item.id == row.message).unwrap();
    assert_eq!(again.tries, 1);
    put_off(NextTry::Never).await;
    let view = rows(t).await.remove(0);
    assert_eq!((view.state(), view.tries, view.error.as_deref()), (OutboxState::Failed, 2, Some("no such queue")));
    assert!(view.failed_at.is_some() && view.due_at.is_none());
    t.clock.advance(1_000_000);
    assert!(take(t).await.iter().all(|item| item.id != row.message));
    // The task itself is as ready as ever.
    assert_eq!(t.claim(&["q"], 2).await.len(), 2);
}

async fn an_absent_transport_does_not_count_as_a_try(t: &Fixture) {
    external(t).await;
    t.put_in("q").await;
    let message = rows(t).await[0].message;
    let rows_of = [PutOff { id: message, error: "redis is away".to_owned(), next: NextTry::Away { after_ms: 1_000 } }];
    t.store.put_off_effects(&rows_of).await.unwrap();
    let view = rows(t).await.remove(0);
    assert_eq!((view.state(), view.tries, view.error.as_deref()), (OutboxState::Waiting, 0, Some("redis is away")));
}

async fn failed_rows_are_tried_again_when_somebody_says_so(t: &Fixture) {
    external(t).await;
    t.put_many("q", 2).await;
    t.put_in("r").await;
    let fail =
        rows(t).await.into_iter().map(|row| PutOff { id: row.message, error: "no".to_owned(), next: NextTry::Never });
    t.store.put_off_effects(&fail.collect::<Vec<_>>()).await.unwrap();
    let first = rows(t).await[0].message;
    assert_eq!(t.store.retry_outbox(&OutboxRetry::These(vec![first, 987_654])).await.unwrap(), 1);
    assert_eq!(t.store.retry_outbox(&OutboxRetry::These(vec![first])).await.unwrap(), 0, "it waits already");
    assert_eq!(t.store.retry_outbox(&OutboxRetry::All { queue: Some("q".to_owned()) }).await.unwrap(), 1);
    assert_eq!(t.store.retry_outbox(&OutboxRetry::All { queue: None }).await.unwrap(), 1);
    let taken = take(t).await;
    assert_eq!((taken.len(), taken[0].tries), (3, 0), "at once, and as if never tried");
}

async fn the_lag_is_told(t: &Fixture) {
    assert_eq!(t.store.outbox_lag(EffectKind::EnqueueTask, "redis").await.unwrap(), OutboxLag::default());
    external(t).await;
    t.put_many("q", 3).await;
    t.clock.advance(2_000);
    let message = rows(t).await[2].message;
    let failed = [PutOff { id: message, error: "no".to_owned(), next: NextTry::Never }];
    t.store.put_off_effects(&failed).await.unwrap();
    let lag = t.store.outbox_lag(EffectKind::EnqueueTask, "redis").await.unwrap();
    assert_eq!((lag.waiting, lag.failed, lag.oldest_ms), (2, 1, 2_000));
    publish(t).await;
    let lag = t.store.outbox_lag(EffectKind::EnqueueTask, "redis").await.unwrap();
    assert_eq!((lag.waiting, lag.failed, lag.oldest_ms), (0, 1, 0));
}

async fn lists_go_page_by_page(t: &Fixture) {
    external(t).await;
    t.put_many("q", 5).await;
    t.put_in("r").await;
    let mut filter = OutboxFilter { queue: Some("q".to_owned()), limit: 2, ..OutboxFilter::default() };
    let mut seen = Vec::new();
    loop {
        let page = t.store.outbox(&filter).await.unwrap();
        seen.extend(page.items.iter().map(|row| row.message));
        let Some(next) = page.next else { break };
        filter.after = Some(next.parse().unwrap());
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted());
    let failed = OutboxFilter { state: Some(OutboxState::Failed), limit: 10, ..OutboxFilter::default() };
    assert!(t.store.outbox(&failed).await.unwrap().items.is_empty());
    let waiting = OutboxFilter { state: Some(OutboxState::Waiting), limit: 10, ..OutboxFilter::default() };
    assert_eq!(t.store.outbox(&waiting).await.unwrap().items.len(), 6);
}

/// Feeds a queue in small steps. Gives how many rows that made.
async fn feed(t: &Fixture, queue: &str) -> u64 {
    let (queue, mut after, mut fed) = (t.queue(queue).await.queue.id, Seq(0), 0);
    loop {
        let step = t.store.feed_outbox(queue, after, 2).await.unwrap();
        fed += step.fed;
        let Some(next) = step.next else { return fed };
        after = next;
    }
}

/// Rows of a queue that nobody needs, found in small steps, and dropped.
async fn drop_unneeded(t: &Fixture, queue: &str, transport: Transport) -> usize {
    let (queue, mut after, mut dropped) = (t.queue(queue).await.queue.id, i64::MIN, 0);
    loop {
        let page = t.store.check_outbox(queue, transport, after, 2).await.unwrap();
        let Some(last) = page.last() else { return dropped };
        after = last.message;
        let unneeded: Vec<i64> = page.iter().filter(|wake| !wake.needed).map(|wake| wake.message).collect();
        dropped += unneeded.len();
        t.store.effects_done(&unneeded).await.unwrap();
    }
}

async fn counts(t: &Fixture, transport: Transport) -> Vec<(bool, u64, u64, u64, u64)> {
    let counts = t.store.outbox_counts(transport).await.unwrap();
    counts.iter().map(|of| (of.current, of.rows, of.published, of.ready, of.running)).collect()
}

async fn a_change_of_transport_leaves_nobody_without_a_wake_up(t: &Fixture) {
    let ids = t.put_many("q", 4).await;
    let held = t.claim_one("q").await;
    t.set_transport("q", Transport::Redis).await;
    assert_eq!(counts(t, Transport::Redis).await, [(true, 0, 0, 3, 1)]);
    assert_eq!(feed(t, "q").await, 3, "what is held needs none");
    assert_eq!(feed(t, "q").await, 0);
    assert_eq!(take(t).await.len(), 3, "due at once");
    publish(t).await;
    assert_eq!(counts(t, Transport::Redis).await, [(true, 3, 3, 3, 1)]);
    assert_eq!(drop_unneeded(t, "q", Transport::Redis).await, 0);
    let queues = t.store.external_queues().await.unwrap();
    assert_eq!((queues.len(), &*queues[0].name, queues[0].transport), (1, "q", Transport::Redis));

    t.set_transport("q", Transport::Sqs).await;
    assert_eq!(counts(t, Transport::Redis).await, [(false, 3, 3, 3, 1)]);
    assert_eq!(drop_unneeded(t, "q", Transport::Redis).await, 3);
    assert_eq!(feed(t, "q").await, 3);
    assert!(rows(t).await.iter().all(|row| row.transport == Transport::Sqs));

    t.set_transport("q", Transport::Embedded).await;
    assert_eq!(feed(t, "q").await, 0);
    assert_eq!(drop_unneeded(t, "q", Transport::Sqs).await, 3);
    assert!(rows(t).await.is_empty() && t.store.external_queues().await.unwrap().is_empty());
    assert!(counts(t, Transport::Redis).await.is_empty() && counts(t, Transport::Sqs).await.is_empty());
    t.complete(&held).await.unwrap();
    let rest: Vec<_> = t.claim_ids(&["q"], 10).await;
    assert_eq!(rest, ids[1..]);
}

async fn what_is_lost_is_published_again(t: &Fixture) {
    external(t).await;
    t.put_many("q", 3).await;
    publish(t).await;
    let queue = t.store.external_queues().await.unwrap().remove(0).id;
    assert!(t.store.published_outbox(queue, 60_000, i64::MIN, 10).await.unwrap().is_empty(), "too young");
    t.clock.advance(60_000);
    let held = t.claim_one("q").await;
    let all = t.store.published_outbox(queue, 60_000, i64::MIN, 10).await.unwrap();
    assert_eq!(all.iter().map(|wake| wake.ready).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(all[0].message, held.message);
    let rest = t.store.published_outbox(queue, 60_000, all[0].message, 1).await.unwrap();
    assert_eq!(rest.iter().map(|wake| wake.message).collect::<Vec<_>>(), [all[1].message]);
    assert_eq!(t.store.republish(&[all[1].message, 987_654]).await.unwrap(), 1);
    assert_eq!(t.store.republish(&[all[1].message]).await.unwrap(), 0);
    let taken = take(t).await;
    assert_eq!(taken.iter().map(|item| item.id).collect::<Vec<_>>(), [all[1].message], "the same number again");
}

async fn what_messages_stand_for_is_told(t: &Fixture) {
    external(t).await;
    let short = Spec { lease_ttl_ms: Some(1_000), ..make::attempts(5) };
    for _ in 0..3 {
        t.put(tenure_core::command::submit::NewTask { spec: short, ..t.task("q").await }).await;
    }
    publish(t).await;
    let messages: Vec<i64> = rows(t).await.iter().map(|row| row.message).collect();
    let held = t.claim_one("q").await;
    let done = t.claim_one("q").await;
    t.complete(&done).await.unwrap();
    let live = t.store.live_wakes(&[messages[0], messages[1], messages[2], 987_654]).await.unwrap();
    let told: HashMap<i64, (bool, bool)> =
        live.iter().map(|(message, wake)| (*message, (wake.ready, wake.receipt.is_some()))).collect();
    assert_eq!(told, HashMap::from([(held.message, (false, true)), (messages[2], (true, true))]));
}
