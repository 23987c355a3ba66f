//! Cancellation in both modes.

use tenure_core::attempt::{Reason, Receipt};
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::{Cancel, Canceled, Mode};
use tenure_core::command::submit::{NewTask, Start};
use tenure_core::command::{Answer, Command, ConflictKind, Reach, Rejection};
use tenure_core::task::{Place, State};
use tenure_store::AttemptView;

use crate::common::{Fixture, after_start, make};

crate::on_both_stores!(
    what_waits_ends_at_once,
    a_holder_is_told_and_stops,
    a_holder_may_still_succeed_within_its_grace,
    a_holder_that_does_not_stop_loses_its_lease,
    an_immediate_cancel_takes_the_lease_away_and_keeps_later_reports,
    only_what_is_within_reach_is_canceled,
    what_has_ended_stays_as_it_ended,
);

fn canceled(state: State) -> Outcome {
    Ok(Answer::Canceled(Canceled { state, reason: "stop".into() }))
}

async fn what_waits_ends_at_once(t: &Fixture) {
    let ready = t.put_in("q").await;
    let scheduled = t.put(NewTask { start: Start::After(1_000), ..t.task("q").await }).await;
    for id in [ready, scheduled] {
        assert_eq!(t.run(make::cancel(id, Mode::Cooperative)).await, canceled(State::Canceled));
        let Place::Finished(finished) = t.view(id).await.place else { panic!("it has ended") };
        assert_eq!((finished.cancel_reason.as_deref(), finished.attempt), (Some("stop"), 0));
        assert_eq!(t.attempts(id).await.len(), 0);
    }
    t.clock.advance(1_000);
    assert_eq!((t.promote().await, t.claim(&["q"], 9).await.len()), (0, 0));
}

async fn a_holder_is_told_and_stops(t: &Fixture) {
    let id = t.put_in("q").await;
    let grant = t.claim_one("q").await;
    assert_eq!(t.run(make::cancel(id, Mode::Cooperative)).await, canceled(State::Running));
    // Somebody else wants it too: the first reason counts.
    let other = Cancel { task: id, reason: "other".into(), mode: Mode::Cooperative, reach: Reach::All };
    assert_eq!(t.run(Command::Cancel(other)).await, canceled(State::Running));
    t.clock.advance(5_000);
    let Ok(Answer::Renewed(renewed)) = t.run(make::heartbeat(&grant)).await else { panic!("the lease is live") };
    assert_eq!((renewed.cancel.as_deref(), renewed.expires_at), (Some("stop"), after_start(35_000)));
    let Place::Running(running) = t.view(id).await.place else { panic!("it runs") };
    assert_eq!(running.cancel.unwrap().signaled_at, Some(after_start(5_000)));

    let outcome = t.run(make::fail(&grant, "CANCELLED", None)).await;
    assert_eq!(outcome, Ok(Answer::Reported(Receipt::Failed { requeued: false, dlq: false })));
    let Place::Finished(finished) = t.view(id).await.place else { panic!("it has ended") };
    assert_eq!((finished.cancel_reason.as_deref(), finished.dead_lettered_at), (Some("stop"), None));
    assert_eq!(t.state(id).await, State::Canceled);
}

async fn a_holder_may_still_succeed_within_its_grace(t: &Fixture) {
    let id = t.put_in("q").await;
    let grant = t.claim_one("q").await;
    t.run(make::cancel(id, Mode::Cooperative)).await.unwrap();
    t.clock.advance(49_999);
    assert_eq!(t.complete(&grant).await, Ok(Answer::Reported(Receipt::Completed)));
    assert_eq!(t.state(id).await, State::Succeeded);
}

async fn a_holder_that_does_not_stop_loses_its_lease(t: &Fixture) {
    let id = t.put_in("q").await;
    let grant = t.claim_one("q").await;
    t.run(make::cancel(id, Mode::Cooperative)).await.unwrap();
    // One heartbeat interval to be told, and then the grace.
    t.clock.advance(49_999);
    assert_eq!(t.reap().await, 0);
    t.clock.advance(1);
    assert_eq!(t.store.expired(10).await.unwrap(), [id.seq()]);
    assert_eq!(t.reap().await, 1);
    assert_eq!(t.state(id).await, State::Canceled);
    let [AttemptView::Closed(only)] = &t.attempts(id).await[..] else { panic!("one") };
    assert_eq!(only.reason, Reason::CancelTimeout);
    let Err(Rejection::Conflict(late)) = t.complete(&grant).await else { panic!("too late") };
    assert_eq!((late.kind, late.state), (ConflictKind::AttemptClosed, State::Canceled));
}

async fn an_immediate_cancel_takes_the_lease_away_and_keeps_later_reports(t: &Fixture) {
    let id = t.put_in("q").await;
    let grant = t.claim_one("q").await;
    assert_eq!(t.run(make::cancel(id, Mode::Immediate)).await, canceled(State::Canceled));
    let Err(Rejection::Conflict(beat)) = t.run(make::heartbeat(&grant)).await else { panic!("it is gone") };
    assert_eq!(beat.kind, ConflictKind::AttemptClosed);
    for _ in 0..2 {
        let Err(Rejection::Conflict(late)) = t.run(make::complete(&grant, "[7]")).await else { panic!("refused") };
        assert_eq!((late.kind, late.ack), (ConflictKind::AttemptClosed, true));
    }
    let [AttemptView::Closed(only)] = &t.attempts(id).await[..] else { panic!("one") };
    let evidence = only.evidence.as_ref().unwrap();
    assert_eq!((only.reason, evidence.result.as_deref(), evidence.more), (Reason::Revoked, Some("[7]"), 1));
    assert_eq!(t.state(id).await, State::Canceled);
}

async fn only_what_is_within_reach_is_canceled(t: &Fixture) {
    let id = t.put_in("q").await;
    let by = |tenant: &str| {
        let reach = Reach::Tenant(tenant.into());
        Command::Cancel(Cancel { task: id, reason: "stop".into(), mode: Mode::Immediate, reach })
    };
    assert_eq!(t.run(by("other")).await, Err(Rejection::NotFound));
    assert_eq!(t.state(id).await, State::Ready);
    assert_eq!(t.run(by("acme")).await, canceled(State::Canceled));
    assert_eq!(t.run(make::cancel(t.mint().await, Mode::Immediate)).await, Err(Rejection::NotFound));
}

async fn what_has_ended_stays_as_it_ended(t: &Fixture) {
    let id = t.put_in("q").await;
    let grant = t.claim_one("q").await;
    t.complete(&grant).await.unwrap();
    let refused = Err(Rejection::AlreadyTerminal { state: State::Succeeded });
    assert_eq!(t.run(make::cancel(id, Mode::Immediate)).await, refused);
    assert_eq!(t.state(id).await, State::Succeeded);
}
