//! Attempts that are pushed: the row is lease and intent, and what their workers tell comes back as it was told.

use std::sync::Arc;

use tenure_core::attempt::{AttemptState, Completion, Progress, Reason};
use tenure_core::command::callback::{Call, Callback, CallbackAnswer, Disposition, Proof};
use tenure_core::command::claim::{Claim, Claimer, Grant};
use tenure_core::command::push::{PushOutcome, Pushed, TakePush};
use tenure_core::command::submit::NewTask;
use tenure_core::command::{Answer, Command, Rejection};
use tenure_core::queue::{Push, QueueSettings};
use tenure_core::task::{Place, Spec, State};
use tenure_store::AttemptView;

use crate::common::{Fixture, after_start, make};

crate::on_both_stores!(
    a_push_queue_grants_to_its_dispatcher_and_to_nobody_else,
    a_push_is_due_until_something_comes_of_it,
    of_many_control_planes_one_takes_a_push,
    a_start_binds_its_worker_and_ends_the_pushing,
    what_a_callback_worker_tells_comes_back,
    a_replay_is_known_after_a_newer_grant,
    the_settings_of_a_push_come_back,
);

fn push(concurrency: u32) -> QueueSettings {
    let push = Push { concurrency, secret_ref: Some("s".into()), ..Push::to("https://worker.example/d".into()) };
    QueueSettings { push: Some(Arc::new(push)), ..QueueSettings::default() }
}

async fn dispatch(t: &Fixture, max_jobs: usize) -> Vec<Grant> {
    let claim = Claim { claimer: Claimer::delivery(make::seed()), queues: vec!["q".into()], max_jobs };
    t.claimed(claim).await.grants
}

async fn dispatched(t: &Fixture, spec: Spec) -> Grant {
    t.set_queue("q", push(9)).await;
    t.put(NewTask { spec, ..t.task("q").await }).await;
    dispatch(t, 1).await.remove(0)
}

fn callback(grant: &Grant, call: Call) -> Command {
    Command::Callback(Callback {
        task: grant.task,
        tenant: Arc::clone(&grant.body.as_ref().unwrap().tenant),
        workspace: Arc::clone(&grant.body.as_ref().unwrap().workspace),
        proof: Proof { attempt: grant.attempt, attempt_id: grant.attempt_id },
        attempt: grant.attempt,
        attempt_id: None,
        worker: "w-1".into(),
        call,
    })
}

fn completion(outcome: AttemptState) -> Completion {
    Completion {
        outcome,
        output: Some("{\"rows\":1}".into()),
        error: None,
        phase: Some("load".into()),
        partial_progress: Some("[5]".into()),
        metrics: Some("{\"cpuTimeMs\":4}".into()),
        told_completed_at: Some(after_start(77)),
    }
}

fn told(outcome: tenure_core::batch::Outcome) -> (AttemptState, Disposition) {
    match outcome {
        Ok(Answer::Callback(CallbackAnswer::Reported(told))) => (told.state, told.disposition),
        other => panic!("{other:?}"),
    }
}

async fn a_push_queue_grants_to_its_dispatcher_and_to_nobody_else(t: &Fixture) {
    t.put_many("q", 3).await;
    t.set_queue("q", push(2)).await;
    assert!(t.claim(&["q"], 9).await.is_empty());
    let elsewhere = t.put_in("pulled").await;
    assert_eq!(t.claim_ids(&["q", "pulled"], 1).await, [elsewhere], "it does not stand in the way of the next queue");
    let first = dispatch(t, 9).await;
    assert_eq!(first.len(), 2, "as many as the worker takes at once");
    assert!(first.iter().all(|grant| grant.delivery.is_some() && grant.body.is_some()));
    assert_eq!(first[0].expires_at, after_start(300_000));
    assert!(dispatch(t, 9).await.is_empty());
    t.set_queue("q", QueueSettings::default()).await;
    assert!(dispatch(t, 9).await.is_empty());
    assert_eq!(t.claim(&["q"], 9).await.len(), 1);
}

async fn a_push_is_due_until_something_comes_of_it(t: &Fixture) {
    let grant = dispatched(t, Spec::default()).await;
    let due = t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap();
    assert_eq!((due.rows, due.next_at), (vec![], Some(after_start(15_000))));
    t.clock.advance(15_000);
    assert_eq!(t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap().rows, [(grant.queue, grant.seq())]);
    let taken = t.run(Command::TakePush(TakePush { row: grant.seq() })).await;
    let Ok(Answer::Claimed(taken)) = taken else { panic!("{taken:?}") };
    assert_eq!(taken.grants[0].delivery.as_ref().unwrap().deliveries, 2);
    assert!(taken.grants[0].body.is_some());
    let (row, attempt_id) = (grant.seq(), grant.attempt_id);
    let pushed_as = |delivery, outcome| Command::Pushed(Pushed { row, attempt_id, delivery, outcome });
    let pushed = |outcome| pushed_as(2, outcome);
    let stale = t.run(pushed_as(1, PushOutcome::Rejected { message: "404".into() })).await;
    assert_eq!(stale, Ok(Answer::Done(false)), "another push is on its way");
    t.run(pushed(PushOutcome::Again { after_ms: Some(500) })).await.unwrap();
    assert_eq!(t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap().next_at, Some(after_start(15_500)));
    t.run(pushed(PushOutcome::Accepted)).await.unwrap();
    assert_eq!(t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap().next_at, Some(after_start(75_000)));
    t.run(callback(&grant, Call::Started { told_at: None })).await.unwrap();
    let due = t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap();
    assert_eq!((due.rows, due.next_at), (vec![], None));
}

async fn of_many_control_planes_one_takes_a_push(t: &Fixture) {
    let grant = dispatched(t, Spec::default()).await;
    t.clock.advance(15_000);
    let take = || Command::TakePush(TakePush { row: grant.seq() });
    let (here, there) = (t.client(), t.client());
    let (a, b) = tokio::join!(here.run(take()), there.run(take()));
    let count = |outcome| match outcome {
        Ok(Answer::Claimed(claimed)) => claimed.grants.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(count(a) + count(b), 1);
}

async fn a_start_binds_its_worker_and_ends_the_pushing(t: &Fixture) {
    let grant = dispatched(t, Spec::default()).await;
    assert!(!t.view(grant.task).await.place.standing().started);
    t.clock.advance(1_000);
    t.run(callback(&grant, Call::Started { told_at: Some(after_start(7)) })).await.unwrap();
    let Place::Running(running) = t.view(grant.task).await.place else { panic!("it runs") };
    assert_eq!((running.lease.holder.as_deref(), running.lease.expires_at), (Some("w-1"), after_start(91_000)));
    assert_eq!(running.carry.delivery.as_ref().unwrap().told_started_at, Some(after_start(7)));
    let mut other = callback(&grant, Call::Started { told_at: None });
    if let Command::Callback(callback) = &mut other {
        callback.worker = "w-2".into();
    }
    assert!(matches!(t.run(other).await, Err(Rejection::Callback(_))));
}

async fn what_a_callback_worker_tells_comes_back(t: &Fixture) {
    let spec = Spec { max_attempts: Some(2), retry: Some(make::backoff(0)), ..Spec::default() };
    let first = dispatched(t, spec).await;
    let beat = Call::Heartbeat {
        told_at: Some(after_start(3)),
        progress: Progress { pct: Some(40), message: Some("part 4".into()) },
        checkpoint: None,
    };
    t.run(callback(&first, beat)).await.unwrap();
    let end = t.run(callback(&first, Call::completed(completion(AttemptState::Failed)))).await;
    assert_eq!(told(end), (AttemptState::Failed, Disposition::Recorded));
    let second = dispatch(t, 1).await.remove(0);
    assert_eq!(second.checkpoint.as_deref(), Some("[5]"));
    let end = t.run(callback(&second, Call::completed(completion(AttemptState::Succeeded)))).await;
    assert_eq!(told(end), (AttemptState::Succeeded, Disposition::Recorded));
    let attempts = t.attempts(first.task).await;
    let [AttemptView::Closed(one), AttemptView::Closed(two)] = &attempts[..] else { panic!("{attempts:?}") };
    let part = one.callback.as_ref().unwrap();
    assert_eq!(
        (one.worker.as_deref(), one.progress.pct, part.told_heartbeat_at),
        (Some("w-1"), Some(40), Some(after_start(3)))
    );
    assert_eq!(part.completion.as_deref(), Some(&completion(AttemptState::Failed)));
    let part = two.callback.as_ref().unwrap();
    let without_output = Completion { output: None, ..completion(AttemptState::Succeeded) };
    assert_eq!(part.completion.as_deref(), Some(&without_output), "the result of the task has its own place");
    let Place::Finished(finished) = t.view(first.task).await.place else { panic!("it has ended") };
    assert_eq!(finished.result.as_deref(), Some("{\"rows\":1}"));
}

async fn a_replay_is_known_after_a_newer_grant(t: &Fixture) {
    let spec = Spec { max_attempts: Some(2), retry: Some(make::backoff(0)), ..Spec::default() };
    let first = dispatched(t, spec).await;
    let end = || callback(&first, Call::completed(completion(AttemptState::Failed)));
    t.run(end()).await.unwrap();
    assert_eq!(told(t.run(end()).await).1, Disposition::Duplicate);
    let second = dispatch(t, 1).await.remove(0);
    assert_eq!(told(t.run(end()).await).1, Disposition::Duplicate);
    let other = callback(&first, Call::completed(completion(AttemptState::Canceled)));
    assert!(matches!(t.run(other).await, Err(Rejection::Callback(_))));
    let attempts = t.attempts(first.task).await;
    let AttemptView::Closed(one) = &attempts[0] else { panic!("{attempts:?}") };
    assert_eq!(one.evidence.as_ref().unwrap().state, AttemptState::Canceled);
    t.run(callback(&second, Call::completed(completion(AttemptState::Succeeded)))).await.unwrap();
    assert_eq!(told(t.run(end()).await), (AttemptState::Failed, Disposition::Duplicate));
    assert_eq!(t.state(first.task).await, State::Succeeded);
}

async fn the_settings_of_a_push_come_back(t: &Fixture) {
    let grant = dispatched(t, Spec::default()).await;
    assert_eq!(t.queue("q").await.queue.settings, push(9));
    assert_eq!(t.store.queue(grant.queue).await.unwrap().unwrap().queue.settings, push(9));
    t.clock.advance(300_000);
    assert_eq!(t.reap().await, 1);
    let attempts = t.attempts(grant.task).await;
    let AttemptView::Closed(one) = &attempts[0] else { panic!("{attempts:?}") };
    assert_eq!((one.reason, one.worker.as_deref()), (Reason::DispatchFailed, None));
    assert_eq!(t.store.pushes_due(&[(grant.queue, 10)]).await.unwrap().next_at, None);
}
