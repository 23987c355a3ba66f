//! What time ends, what an outage holds back, and what a late report can still do.

use tenure_core::attempt::{Reason, Receipt};
use tenure_core::command::claim::Grant;
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, ConflictKind, Rejection};
use tenure_core::task::{FailReason, Place, Spec, State};
use tenure_store::AttemptView;

use crate::common::{Fixture, START, after_start, make};

crate::on_both_stores!(
    a_lease_without_heartbeats_expires,
    an_expired_lease_is_never_extended,
    an_attempt_that_runs_too_long_is_ended_in_spite_of_heartbeats,
    a_deadline_ends_what_waits_and_what_runs,
    nothing_expires_in_an_outage_or_in_the_grace_behind_it,
    an_outage_that_nobody_wrote_down_yet_expires_nothing,
    a_lease_granted_after_an_outage_expires_in_its_own_time,
    a_lease_renewed_after_an_outage_expires_in_its_own_time,
    of_two_outages_the_last_one_decides,
    the_first_start_is_no_outage,
    marks_of_life_keep_the_grace_away,
    a_late_completion_withdraws_the_retry,
    a_late_completion_takes_a_task_off_the_dead_letters,
    a_late_report_after_the_deadline_is_refused,
    a_report_that_another_attempt_overtook_is_kept_as_evidence,
);

async fn put(t: &Fixture, spec: Spec) -> Grant {
    t.put(NewTask { spec, ..t.task("q").await }).await;
    t.claim_one("q").await
}

fn conflict(outcome: tenure_core::batch::Outcome) -> ConflictKind {
    match outcome {
        Err(Rejection::Conflict(conflict)) => conflict.kind,
        other => panic!("not refused: {other:?}"),
    }
}

async fn a_lease_without_heartbeats_expires(t: &Fixture) {
    let grant = put(t, make::attempts(2)).await;
    t.clock.advance(59_999);
    assert_eq!((t.store.expired(10).await.unwrap(), t.reap().await), (vec![], 0));
    t.clock.advance(1);
    assert_eq!(t.store.expired(10).await.unwrap(), [grant.seq()]);
    assert_eq!(t.reap().await, 1);
    let [AttemptView::Closed(only)] = &t.attempts(grant.task).await[..] else { panic!("one") };
    assert_eq!((only.reason, only.ended_at), (Reason::HeartbeatTimeout, after_start(60_000)));
    assert_eq!(t.claim_one("q").await.attempt, 2);
    t.clock.advance(60_000);
    assert_eq!(t.reap().await, 1);
    let Place::Finished(finished) = t.view(grant.task).await.place else { panic!("it has ended") };
    assert_eq!((finished.reason, finished.attempt), (Some(FailReason::MaxAttempts), 2));
}

async fn an_expired_lease_is_never_extended(t: &Fixture) {
    let grant = put(t, make::attempts(2)).await;
    t.clock.advance(60_000);
    // Nobody has swept it yet.
    assert_eq!(conflict(t.run(make::heartbeat(&grant)).await), ConflictKind::LeaseExpired);
    assert_eq!(t.state(grant.task).await, State::Ready, "the refusal closed it");
    assert_eq!(t.reap().await, 0);
    let second = t.claim_one("q").await;
    assert_eq!(conflict(t.run(make::heartbeat(&grant)).await), ConflictKind::StaleAttempt);
    let mut guessed = second.clone();
    guessed.token = tenure_core::LeaseToken::from_u128(1);
    assert_eq!(conflict(t.run(make::heartbeat(&guessed)).await), ConflictKind::StaleLease);
    assert_eq!(conflict(t.complete(&guessed).await), ConflictKind::StaleLease);
}

async fn an_attempt_that_runs_too_long_is_ended_in_spite_of_heartbeats(t: &Fixture) {
    let grant = put(t, Spec { timeout_ms: Some(90_000), ..make::attempts(1) }).await;
    t.clock.advance(50_000);
    let Ok(Answer::Renewed(renewed)) = t.run(make::heartbeat(&grant)).await else { panic!("live") };
    assert_eq!(renewed.expires_at, after_start(90_000));
    t.clock.advance(40_000);
    assert_eq!(t.reap().await, 1);
    let [AttemptView::Closed(only)] = &t.attempts(grant.task).await[..] else { panic!("one") };
    assert_eq!(only.reason, Reason::Timeout);
}

async fn a_deadline_ends_what_waits_and_what_runs(t: &Fixture) {
    let spec = Spec { deadline: Some(after_start(10_000)), ..Spec::default() };
    let running = put(t, spec).await.task;
    let ready = t.put(NewTask { spec, ..t.task("q").await }).await;
    let scheduled = t.put(NewTask { spec, start: Start::After(60_000), ..t.task("q").await }).await;
    t.clock.advance(9_999);
    assert_eq!(t.store.expired(10).await.unwrap(), []);
    t.clock.advance(1);
    let mut expired = t.store.expired(10).await.unwrap();
    expired.sort_unstable();
    assert_eq!(expired, [running, ready, scheduled].map(|id| id.seq()));
    assert_eq!(t.store.expired(2).await.unwrap().len(), 2);
    assert_eq!(t.reap().await, 3);
    for id in [running, ready, scheduled] {
        let Place::Finished(finished) = t.view(id).await.place else { panic!("it has ended") };
        assert_eq!(finished.reason, Some(FailReason::DeadlineExceeded));
    }
}

async fn nothing_expires_in_an_outage_or_in_the_grace_behind_it(t: &Fixture) {
    let short = put(t, Spec { lease_ttl_ms: Some(10_000), ..Spec::default() }).await;
    let long = put(t, Spec { lease_ttl_ms: Some(100_000), ..Spec::default() }).await;
    t.clock.advance_through_outage(600_000);
    let now = after_start(600_000);
    assert_eq!(t.store.mark_alive().await.unwrap(), Some(now.plus(100_000)), "as long as the longest lease in use");
    assert_eq!(t.store.mark_alive().await.unwrap(), None, "the gap is written once");

    assert_eq!(t.store.expired(10).await.unwrap().len(), 2, "they look expired");
    assert_eq!(t.reap().await, 0);
    assert_eq!(t.claim(&["q"], 9).await, [], "nobody else gets them");
    t.clock.advance(99_999);
    assert_eq!(t.reap().await, 0);
    // Whoever lived on shows it now, and goes on.
    let Ok(Answer::Renewed(renewed)) = t.run(make::heartbeat(&long)).await else { panic!("within the grace") };
    assert_eq!(renewed.expires_at, now.plus(199_999));
    t.clock.advance(1);
    assert_eq!(t.reap().await, 1);
    assert_eq!((t.state(short.task).await, t.state(long.task).await), (State::Scheduled, State::Running));
}

async fn an_outage_that_nobody_wrote_down_yet_expires_nothing(t: &Fixture) {
    let grant = put(t, Spec::default()).await;
    t.clock.advance_through_outage(600_000);
    // The first look after the outage comes before the first mark of life.
    assert_eq!(t.reap().await, 0);
    assert!(matches!(t.run(make::heartbeat(&grant)).await, Ok(Answer::Renewed(_))));
}

fn lease_of(ttl_ms: i64) -> Spec {
    Spec { lease_ttl_ms: Some(ttl_ms), ..make::attempts(3) }
}

async fn a_lease_granted_after_an_outage_expires_in_its_own_time(t: &Fixture) {
    let (short, long) = (put(t, lease_of(10_000)).await, put(t, lease_of(100_000)).await);
    t.clock.advance_through_outage(600_000);
    let until = t.store.mark_alive().await.unwrap().unwrap();
    t.clock.advance(1);
    let new = put(t, lease_of(10_000)).await;
    t.clock.advance(9_999);
    assert_eq!(t.reap().await, 0);
    t.clock.advance(1);
    assert_eq!(t.store.expired(10).await.unwrap().len(), 3);
    assert_eq!(t.store.expired(1).await.unwrap(), [new.seq()], "those that are held back would fill the page");
    assert_eq!(conflict(t.run(make::heartbeat(&new)).await), ConflictKind::LeaseExpired);
    assert_eq!(t.state(new.task).await, State::Ready);

    // It is granted again, and nothing else is.
    let again = t.claim(&["q"], 9).await;
    assert_eq!(again.iter().map(|grant| (grant.task, grant.attempt)).collect::<Vec<_>>(), [(new.task, 2)]);
    t.clock.advance(10_000);
    assert_eq!(t.reap().await, 1);
    t.clock.advance(until.since(t.store.now().await.unwrap()) - 1);
    assert_eq!(t.reap().await, 0);
    assert_eq!(t.claim(&["q"], 9).await.len(), 1);
    for old in [&short, &long] {
        let Place::Running(held) = t.view(old.task).await.place else { panic!("held back") };
        assert_eq!(held.lease.generation, old.fence);
    }
    t.clock.advance(1);
    assert_eq!(t.reap().await, 2, "the third attempt of the new one has ten seconds left");
}

async fn a_lease_renewed_after_an_outage_expires_in_its_own_time(t: &Fixture) {
    let (renewed, silent) = (put(t, lease_of(10_000)).await, put(t, lease_of(10_000)).await);
    let long = put(t, lease_of(100_000)).await;
    t.clock.advance_through_outage(600_000);
    t.store.mark_alive().await.unwrap();
    t.clock.advance(1);
    t.run(make::heartbeat(&renewed)).await.unwrap();
    t.clock.advance(9_999);
    assert_eq!(t.reap().await, 0);
    t.clock.advance(1);
    assert_eq!(t.reap().await, 1);
    assert_eq!(t.state(renewed.task).await, State::Ready);
    for held in [silent, long] {
        assert_eq!(t.state(held.task).await, State::Running);
    }
}

async fn of_two_outages_the_last_one_decides(t: &Fixture) {
    let long = put(t, lease_of(100_000)).await;
    t.clock.advance_through_outage(600_000);
    let first = t.store.mark_alive().await.unwrap().unwrap();
    t.clock.advance(1);
    let between = put(t, lease_of(10_000)).await;
    t.complete(&long).await.unwrap();

    t.clock.advance_through_outage(20_000);
    assert_eq!(t.reap().await, 0, "nobody has written the second outage down yet");
    assert_eq!(t.store.mark_alive().await.unwrap(), Some(first), "ten seconds from now are less");
    t.clock.advance(1);
    let after = put(t, lease_of(10_000)).await;
    t.clock.advance(10_000);
    assert_eq!(t.reap().await, 1);
    assert_eq!((t.state(between.task).await, t.state(after.task).await), (State::Running, State::Ready));
    t.clock.advance(first.since(t.store.now().await.unwrap()) - 1);
    assert_eq!(t.reap().await, 0);
    t.clock.advance(1);
    assert_eq!(t.reap().await, 1);
    assert_eq!(t.state(between.task).await, State::Ready);
}

async fn the_first_start_is_no_outage(t: &Fixture) {
    // The fixture has left the first mark; the next one right behind it finds nothing.
    assert_eq!(t.store.mark_alive().await.unwrap(), None);
    t.clock.advance_through_outage(5_000);
    assert_eq!(t.store.mark_alive().await.unwrap(), None, "a gap as long as allowed");
    t.clock.advance_through_outage(5_001);
    assert!(t.store.mark_alive().await.unwrap().is_some());
}

async fn marks_of_life_keep_the_grace_away(t: &Fixture) {
    put(t, Spec::default()).await;
    for _ in 0..13 {
        t.clock.advance_through_outage(4_999);
        assert_eq!(t.store.mark_alive().await.unwrap(), None);
    }
    assert_eq!(t.store.now().await.unwrap(), after_start(13 * 4_999));
    assert_eq!(t.reap().await, 1);
}

async fn a_late_completion_withdraws_the_retry(t: &Fixture) {
    for (spec, state) in [(make::attempts(2), State::Ready), (Spec::default(), State::Scheduled)] {
        let grant = put(t, spec).await;
        t.clock.advance(60_000);
        assert_eq!(t.reap().await, 1);
        assert_eq!(t.state(grant.task).await, state);
        assert_eq!(t.complete(&grant).await, Ok(Answer::Reported(Receipt::Completed)));
        assert_eq!(t.state(grant.task).await, State::Succeeded);
        let [AttemptView::Closed(only)] = &t.attempts(grant.task).await[..] else { panic!("one") };
        assert_eq!(only.reason, Reason::Completed);
    }
}

async fn a_late_completion_takes_a_task_off_the_dead_letters(t: &Fixture) {
    let grant = put(t, make::attempts(1)).await;
    t.clock.advance(60_000);
    t.reap().await;
    assert_eq!(t.queue("q").await.counts.dead_lettered, 1);
    assert_eq!(t.complete(&grant).await, Ok(Answer::Reported(Receipt::Completed)));
    let Place::Finished(finished) = t.view(grant.task).await.place else { panic!("it has ended") };
    assert_eq!((finished.dead_lettered_at, finished.result.as_deref()), (None, Some("1")));
    assert_eq!(t.queue("q").await.counts.dead_lettered, 0);
}

/// The task had died before its deadline; the deadline holds for the report all the same.
async fn a_late_report_after_the_deadline_is_refused(t: &Fixture) {
    let deadline = Some(after_start(100_000));
    let in_time = put(t, Spec { deadline, ..make::attempts(1) }).await;
    let too_late = put(t, Spec { deadline, ..make::attempts(1) }).await;
    t.clock.advance(60_000);
    assert_eq!(t.reap().await, 2);
    assert_eq!(t.complete(&in_time).await, Ok(Answer::Reported(Receipt::Completed)));
    t.clock.advance(40_000);
    assert_eq!(conflict(t.complete(&too_late).await), ConflictKind::AttemptClosed);
    assert_eq!(t.state(too_late.task).await, State::Failed);
}

async fn a_report_that_another_attempt_overtook_is_kept_as_evidence(t: &Fixture) {
    let first = put(t, make::attempts(3)).await;
    t.clock.advance(60_000);
    t.reap().await;
    let second = t.claim_one("q").await;
    assert_eq!(conflict(t.run(make::complete(&first, "[1]")).await), ConflictKind::StaleAttempt);
    assert_eq!(conflict(t.run(make::fail(&first, "X", None)).await), ConflictKind::StaleAttempt);
    assert_eq!(t.complete(&second).await, Ok(Answer::Reported(Receipt::Completed)));
    // The last attempt has a receipt: other content is another report of it.
    assert_eq!(conflict(t.run(make::complete(&second, "[2]")).await), ConflictKind::ConflictingCompletion);

    let [AttemptView::Closed(one), AttemptView::Closed(two)] = &t.attempts(first.task).await[..] else { panic!("two") };
    let (one, two) = (one.evidence.as_ref().unwrap(), two.evidence.as_ref().unwrap());
    assert_eq!((one.result.as_deref(), one.more, one.received_at), (Some("[1]"), 1, START.plus(60_000)));
    assert_eq!((two.result.as_deref(), two.more), (Some("[2]"), 0));
    let Place::Finished(finished) = t.view(first.task).await.place else { panic!("it has ended") };
    assert_eq!(finished.result.as_deref(), Some("1"));
}
