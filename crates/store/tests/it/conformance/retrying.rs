//! A batch whose commit got no answer is sent again: it finds what it did and gives the same answers.

use tenure_core::attempt::Receipt;
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::Grant;
use tenure_core::command::submit::{NewTask, Start, Submit};
use tenure_core::command::{Answer, Command, NotRetryableReason, Rejection};
use tenure_core::queue::{QueueSettings, Rate};
use tenure_core::task::State;
use tenure_store::Batch;

use crate::common::{Fixture, Kind, make};

crate::on_both_stores!(
    submit,
    submit_with_keys,
    a_submit_that_never_happened_happens,
    claim,
    claim_in_the_order_of_the_grants,
    claim_with_an_id_in_the_order_of_the_grants,
    claim_takes_no_second_token_or_slot,
    claim_task,
    complete_and_fail,
    cancel,
    retry,
    heartbeat_and_hello,
);

/// Executes the batch, and once more as somebody does who got no answer.
async fn twice(t: &Fixture, commands: Vec<Command>) -> (Vec<Outcome>, Vec<Outcome>) {
    let batch = t.batch(commands).await;
    let first = t.execute(batch.clone()).await;
    let second = t.execute(Batch { retrying: true, ..batch }).await;
    (first.outcomes, second.outcomes)
}

async fn same_twice(t: &Fixture, commands: Vec<Command>) -> Vec<Outcome> {
    let (first, second) = twice(t, commands).await;
    assert_eq!(first, second);
    first
}

fn grants(outcome: &Outcome) -> &[Grant] {
    match outcome {
        Ok(Answer::Claimed(claimed)) => &claimed.grants,
        other => panic!("no answer to a claim: {other:?}"),
    }
}

async fn submit(t: &Fixture) {
    let tasks = vec![t.task("q").await, NewTask { start: Start::After(5), ..t.task("q").await }];
    let one = Command::Submit(Submit { tasks, maker: None });
    let other = Command::Submit(Submit { tasks: t.tasks("q", 3).await, maker: None });
    let outcomes = same_twice(t, vec![one, other]).await;
    let Ok(Answer::Submitted(submitted)) = &outcomes[0] else { panic!("{:?}", outcomes[0]) };
    assert!(submitted.iter().all(|task| task.created));
    let counts = t.queue("q").await.counts;
    assert_eq!((counts.ready, counts.scheduled), (4, 1));
}

async fn submit_with_keys(t: &Fixture) {
    let task = NewTask { idempotency: make::key("k", 1), ..t.task("q").await };
    let repeat = NewTask { idempotency: make::key("k", 1), ..t.task("q").await };
    let tasks = vec![task.clone(), repeat];
    let outcomes = same_twice(t, vec![Command::Submit(Submit { tasks, maker: None })]).await;
    let Ok(Answer::Submitted(submitted)) = &outcomes[0] else { panic!("{:?}", outcomes[0]) };
    let got: Vec<_> = submitted.iter().map(|submitted| (submitted.id, submitted.created)).collect();
    assert_eq!(got, [(task.id, true), (task.id, false)]);
    assert_eq!(t.queue("q").await.counts.ready, 1);
}

async fn a_submit_that_never_happened_happens(t: &Fixture) {
    let tasks = vec![t.task("q").await];
    let batch = t.batch(vec![Command::Submit(Submit { tasks, maker: None })]).await;
    t.execute(Batch { retrying: true, ..batch }).await;
    assert_eq!(t.queue("q").await.counts.ready, 1);
    let batch = t.batch(vec![Command::Claim(make::claim("w", &["q"], 1))]).await;
    let done = t.execute(Batch { retrying: true, ..batch }).await;
    assert_eq!(grants(&done.outcomes[0]).len(), 1);
}

async fn claim(t: &Fixture) {
    t.put_many("q", 5).await;
    let claims = vec![make::claim("w1", &["q"], 2), make::claim("w2", &["q"], 2)];
    let outcomes = same_twice(t, claims.into_iter().map(Command::Claim).collect()).await;
    assert_eq!((grants(&outcomes[0]).len(), grants(&outcomes[1]).len()), (2, 2));
    assert!(outcomes.iter().flat_map(grants).all(|grant| grant.body.is_some()));
    assert_eq!(t.queue("q").await.counts.running, 4);
}

/// The first job of an answer is the one that a worker without `max_jobs` sees.
async fn claim_in_the_order_of_the_grants(t: &Fixture) {
    for priority in [5, 1, 3, 0, 4] {
        t.put(NewTask { priority, ..t.task("q").await }).await;
    }
    let outcomes = same_twice(t, vec![Command::Claim(make::claim("w", &["q"], 5))]).await;
    let order: Vec<_> = grants(&outcomes[0]).iter().map(|grant| grant.body.as_ref().unwrap().priority).collect();
    assert_eq!(order, [0, 1, 3, 4, 5]);
}

async fn claim_with_an_id_in_the_order_of_the_grants(t: &Fixture) {
    for priority in [5, 1, 3] {
        t.put(NewTask { priority, ..t.task("q").await }).await;
    }
    let mut claim = make::claim("w", &["q"], 5);
    claim.claimer.worker.as_mut().unwrap().claim_id = Some("c-1".into());
    let outcomes = same_twice(t, vec![Command::Claim(claim)]).await;
    let order: Vec<_> = grants(&outcomes[0]).iter().map(|grant| grant.body.as_ref().unwrap().priority).collect();
    assert_eq!(order, [1, 3, 5]);
}

async fn claim_takes_no_second_token_or_slot(t: &Fixture) {
    let rate = Some(Rate { per_second: 1.0, burst: 2.0 });
    t.set_queue("q", QueueSettings { max_running: Some(2), rate, ..Default::default() }).await;
    t.put_many("q", 5).await;
    same_twice(t, vec![Command::Claim(make::claim("w", &["q"], 1))]).await;
    assert_eq!(t.claim(&["q"], 9).await.len(), 1, "one token and one slot were left");
}

async fn claim_task(t: &Fixture) {
    let id = t.put_in("q").await;
    let outcomes = same_twice(t, vec![make::claim_task("w", id)]).await;
    assert_eq!(grants(&outcomes[0])[0].attempt, 1);
}

async fn complete_and_fail(t: &Fixture) {
    for _ in 0..3 {
        t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
    }
    let held = t.claim(&["q"], 3).await;
    let commands = vec![
        make::complete(&held[0], r#"{"a":1}"#),
        make::fail(&held[1], "X", None),
        make::fail(&held[2], "X", Some(false)),
    ];
    let outcomes = same_twice(t, commands).await;
    let receipts = [
        Receipt::Completed,
        Receipt::Failed { requeued: true, dlq: false },
        Receipt::Failed { requeued: false, dlq: true },
    ];
    assert_eq!(outcomes, receipts.map(|receipt| Ok(Answer::Reported(receipt))));
    let counts = t.queue("q").await.counts;
    assert_eq!((counts.ready, counts.running, counts.finished, counts.dead_lettered), (1, 0, 2, 1));
    assert_eq!(t.claim_one("q").await.attempt, 2, "one retry was queued, not two");
}

async fn cancel(t: &Fixture) {
    let running = t.put_many("q", 2).await;
    t.claim(&["q"], 2).await;
    let ready = t.put_in("q").await;
    let scheduled = t.put(NewTask { start: Start::After(5), ..t.task("q").await }).await;
    let outcomes = same_twice(
        t,
        vec![
            make::cancel(running[0], Mode::Cooperative),
            make::cancel(running[1], Mode::Immediate),
            make::cancel(ready, Mode::Cooperative),
            make::cancel(scheduled, Mode::Immediate),
        ],
    )
    .await;
    let states: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(Answer::Canceled(canceled)) => canceled.state,
            other => panic!("not canceled: {other:?}"),
        })
        .collect();
    assert_eq!(states, [State::Running, State::Canceled, State::Canceled, State::Canceled]);
}

/// Nothing in the row says who asked for the retry. The second try changes nothing, and its refusal names the state
/// that the first one made.
async fn retry(t: &Fixture) {
    let id = t.put(NewTask { spec: make::attempts(1), ..t.task("q").await }).await;
    let grant = t.claim_one("q").await;
    t.bury(&grant, "X").await;
    let (first, second) = twice(t, vec![make::retry(id)]).await;
    let Ok(Answer::Retried(retried)) = first[0] else { panic!("{:?}", first[0]) };
    assert_eq!((retried.attempt, retried.max_attempts), (1, 2));
    assert_eq!(second, [Err(Rejection::NotRetryable { state: State::Ready, reason: NotRetryableReason::State })]);
    let again = t.claim_one("q").await;
    assert_eq!(again.attempt, 2);
    t.run(make::fail(&again, "X", None)).await.unwrap();
    assert_eq!(t.state(id).await, State::Failed, "the budget grew once");
}

async fn heartbeat_and_hello(t: &Fixture) {
    t.put_in("q").await;
    let grant = t.claim_one("q").await;
    same_twice(t, vec![make::heartbeat(&grant)]).await;
    let (first, second) = twice(t, vec![make::hello("w", "1")]).await;
    assert_eq!((&first[0], &second[0]), (&Ok(Answer::Done(true)), &Ok(Answer::Done(false))));
}

/// Decided again it has the same seed, and yet it is another grant.
#[tokio::test]
async fn a_claim_of_a_task_whose_first_grant_has_expired() {
    for kind in [Kind::Sqlite, Kind::Postgres] {
        let t = Fixture::new(kind).await;
        let id = t.put(NewTask { spec: make::attempts(2), ..t.task("q").await }).await;
        let batch = t.batch(vec![make::claim_task("w", id)]).await;
        t.execute(batch.clone()).await;
        t.clock.advance(61_000);
        let done = t.execute(Batch { retrying: true, ..batch }).await;
        let grant = &grants(&done.outcomes[0])[0];
        let place = t.view(id).await.place;
        assert_eq!((grant.attempt, place.attempt(), place.fence()), (2, 2, grant.fence));
        assert_eq!(t.attempts(id).await.len(), 2);
        assert_eq!(t.complete(grant).await, Ok(Answer::Reported(Receipt::Completed)));
    }
}
