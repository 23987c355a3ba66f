//! The holder renews its lease.

use std::sync::Arc;

use super::{Answer, Change, Conflict, ConflictKind, Context, Decision, Task, expire};
use crate::attempt::{ClosedAttempt, Progress};
use crate::id::{Fence, LeaseToken, TaskId, WorkerId};
use crate::lease::{self, Extension, Renewal};
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::Place;
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub struct Heartbeat {
    pub task: TaskId,
    /// The number of the attempt, if the caller names it: nothing is renewed unless the lease is of that attempt.
    pub attempt: Option<u32>,
    pub token: LeaseToken,
    /// The worker that a credential of its own proves; `None` for a credential that many share.
    pub worker: Option<WorkerId>,
    /// Absent parts keep their last value.
    pub progress: Progress,
    pub checkpoint: Option<Arc<str>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewed {
    pub attempt: u32,
    pub fence: Fence,
    pub expires_at: Timestamp,
    /// The reason, if the task must stop.
    pub cancel: Option<Arc<str>>,
}

impl Heartbeat {
    /// The token is of this attempt, and the caller names another one.
    fn names_another(&self, attempt: u32) -> bool {
        self.attempt.is_some_and(|named| named != attempt)
    }
}

pub fn decide(
    task: &Task,
    command: &Heartbeat,
    history: &[ClosedAttempt],
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> Decision {
    if mutant!("expired-lease-renewed") {
        return judge(task, command, history, ctx);
    }
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, history, ctx).after(earlier)
}

fn judge(task: &Task, command: &Heartbeat, history: &[ClosedAttempt], ctx: &Context<'_>) -> Decision {
    let refuse = |kind| Decision::refuse(Conflict::at(&task.place, kind));
    let Place::Running(running) = &task.place else {
        return match task.place.last_attempt() {
            Some(last) if last.token == command.token && command.names_another(last.number) => {
                refuse(ConflictKind::StaleAttempt)
            }
            Some(last) if last.token == command.token && last.receipt.is_some() => refuse(ConflictKind::AttemptClosed),
            Some(last) if last.token == command.token && last.reason.yields_to_late_report() => {
                refuse(ConflictKind::LeaseExpired)
            }
            Some(last) if last.token == command.token => refuse(ConflictKind::AttemptClosed),
            _ => refuse(stale(command, history)),
        };
    };
    let holder = running.lease.holder.as_ref();
    if running.lease.token == command.token && command.worker.as_ref().zip(holder).is_some_and(|(by, own)| by != own) {
        return refuse(ConflictKind::OtherWorker);
    }
    if running.lease.token == command.token && command.names_another(running.attempt) {
        return refuse(ConflictKind::StaleAttempt);
    }
    let mut running = running.clone();
    if let Some(cancel) = &mut running.cancel {
        cancel.signaled_at.get_or_insert(ctx.now);
    }
    // A pushed attempt whose code holds the lease has started, though nobody said so: its time is bounded from the grant.
    if let Some(delivery) = running.carry.delivery.as_deref_mut().filter(|delivery| delivery.started_at.is_none()) {
        (delivery.started_at, delivery.next_at) = (Some(running.granted_at), None);
    }
    let extension = Extension {
        ttl_ms: running.lease_ttl_ms,
        not_after: running.not_after(ctx.grace),
        renewal: Renewal::KeepsGeneration,
    };
    match lease::renew(&running.lease, running.extended_at(), command.token, extension, ctx.now, ctx.grace) {
        Ok(lease) => running.lease = lease,
        Err(lease::LeaseError::WrongToken) if mutant!("token-not-compared") => {}
        Err(lease::LeaseError::WrongToken) => return refuse(stale(command, history)),
        Err(lease::LeaseError::Expired) => return refuse(ConflictKind::LeaseExpired),
    }
    running.last_heartbeat_at = Some(ctx.now);
    if command.progress.pct.is_some() {
        running.progress.pct = command.progress.pct;
    }
    if command.progress.message.is_some() {
        running.progress.message.clone_from(&command.progress.message);
    }
    if command.checkpoint.is_some() {
        running.carry.checkpoint.clone_from(&command.checkpoint);
    }
    let renewed = Renewed {
        attempt: running.attempt,
        fence: running.lease.generation,
        expires_at: running.lease.expires_at,
        cancel: running.cancel.as_ref().map(|cancel| Arc::clone(&cancel.reason)),
    };
    if mutant!("cancel-not-told") {
        let renewed = Renewed { cancel: None, ..renewed };
        return Decision::accept(Change::to(Place::Running(running)), Answer::Renewed(renewed));
    }
    if mutant!("renewal-not-stored") {
        return Decision::unchanged(Answer::Renewed(renewed));
    }
    Decision::accept(Change::to(Place::Running(running)), Answer::Renewed(renewed))
}

/// The bearer of an earlier attempt's token learns that another attempt was granted. Any other token learns nothing.
fn stale(command: &Heartbeat, history: &[ClosedAttempt]) -> ConflictKind {
    if history.iter().any(|old| old.token == command.token) && !mutant!("wrong-reason") {
        ConflictKind::StaleAttempt
    } else {
        ConflictKind::StaleLease
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Reason;
    use crate::command::report;
    use crate::command::testing::{
        at, conflict, failed, id, no_backoff, one_attempt, regranted, running, running_with, settings, succeeded,
        swept, task, to_finished, to_running, to_waiting, token, whole_task, with_ctx, with_grace,
    };
    use crate::command::{cancel, testing};
    use crate::task::{CancelRequest, Running, Spec, State};

    fn heartbeat(seed: u8) -> Heartbeat {
        Heartbeat {
            task: id(),
            attempt: None,
            token: token(seed),
            worker: None,
            progress: Default::default(),
            checkpoint: None,
        }
    }

    fn beat(task: &Task, seed: u8, history: &[ClosedAttempt], now: i64) -> Decision {
        with_ctx(now, |ctx| decide(task, &heartbeat(seed), history, &settings(), ctx))
    }

    fn beat_running(running: Running, now: i64) -> Decision {
        beat(&task(Place::Running(running)), 1, &[], now)
    }

    fn canceled_at(ms: i64) -> Running {
        let request = CancelRequest { reason: "stop".into(), requested_at: at(ms), signaled_at: None };
        Running { cancel: Some(request), ..running() }
    }

    #[test]
    fn a_heartbeat_moves_the_end_of_the_lease_and_nothing_else() {
        let decision = beat_running(running(), 20_000);
        let expected = Running {
            lease: lease::Lease { expires_at: at(80_000), ..running().lease },
            last_heartbeat_at: Some(at(20_000)),
            ..running()
        };
        assert_eq!(to_running(&decision), &expected);
        let (attempt, fence) = (1, running().lease.generation);
        let renewed = Renewed { attempt, fence, expires_at: at(80_000), cancel: None };
        assert_eq!(decision.answer, Ok(Answer::Renewed(renewed)));
    }

    #[test]
    fn no_heartbeat_goes_past_the_timeout_the_deadline_or_the_cancel_grace() {
        let timeout = running_with(Spec { timeout_ms: Some(70_000), ..Spec::default() });
        let deadline = running_with(Spec { deadline: Some(at(75_000)), ..Spec::default() });
        let both = running_with(Spec { timeout_ms: Some(70_000), deadline: Some(at(65_000)), ..Spec::default() });
        for (held, end) in [(timeout, 70_000), (deadline, 75_000), (both, 65_000), (canceled_at(10_000), 50_000)] {
            assert_eq!(to_running(&beat_running(held, 20_000)).lease.expires_at, at(end));
        }
    }

    #[test]
    fn a_heartbeat_of_a_pushed_attempt_shows_that_it_runs() {
        let mut pushed = testing::dispatched(Spec { timeout_ms: Some(70_000), ..Spec::default() });
        pushed.lease_ttl_ms = 70_000;
        let decision = beat_running(pushed.clone(), 20_000);
        let held = to_running(&decision);
        let delivery = held.carry.delivery.as_ref().unwrap();
        assert_eq!((delivery.started_at, delivery.next_at), (Some(pushed.granted_at), None), "it is not pushed again");
        assert_eq!(held.lease.expires_at, pushed.granted_at.plus(70_000), "its time is bounded from the grant");
    }

    #[test]
    fn only_the_holder_renews_if_its_sender_is_known() {
        let held = task(Place::Running(running()));
        let holder = running().lease.holder.unwrap();
        let by = |worker: &str| Heartbeat { worker: Some(worker.into()), ..heartbeat(1) };
        let refused = with_ctx(1_000, |ctx| decide(&held, &by("another"), &[], &settings(), ctx));
        assert_eq!((conflict(&refused).kind, refused.change), (ConflictKind::OtherWorker, None));
        let renewed = with_ctx(1_000, |ctx| decide(&held, &by(&holder), &[], &settings(), ctx));
        assert_eq!(to_running(&renewed).lease.expires_at, at(61_000));
        let guessed = Heartbeat { token: token(9), ..by("another") };
        let guessed = with_ctx(1_000, |ctx| decide(&held, &guessed, &[], &settings(), ctx));
        assert_eq!(conflict(&guessed).kind, ConflictKind::StaleLease, "a wrong token tells nothing about the holder");
    }

    #[test]
    fn an_expired_lease_is_never_extended_swept_or_not() {
        let unswept = beat_running(running(), 60_000);
        assert_eq!(conflict(&unswept).kind, ConflictKind::LeaseExpired);
        assert_eq!(conflict(&unswept).state, State::Scheduled);
        let last = to_waiting(&unswept).carry.last.clone().unwrap();
        assert_eq!((last.reason, last.ended_at), (Reason::HeartbeatTimeout, at(60_000)));

        let swept = beat(&swept(Spec::default()), 1, &[], 60_500);
        assert_eq!(conflict(&swept).kind, ConflictKind::LeaseExpired);
        assert_eq!(swept.change, None);
    }

    #[test]
    fn a_lease_lives_until_the_millisecond_before_its_end() {
        assert_eq!(to_running(&beat_running(running(), 59_999)).lease.expires_at, at(119_999));
    }

    #[test]
    fn within_the_outage_grace_a_lease_that_ran_out_is_renewed() {
        let held = task(Place::Running(running()));
        let renewed = with_grace(90_000, 100_000, |ctx| decide(&held, &heartbeat(1), &[], &settings(), ctx));
        assert_eq!(to_running(&renewed).lease.expires_at, at(150_000));
        let refused = with_grace(100_000, 100_000, |ctx| decide(&held, &heartbeat(1), &[], &settings(), ctx));
        assert_eq!(conflict(&refused).kind, ConflictKind::LeaseExpired);
    }

    #[test]
    fn the_first_answer_that_carries_the_cancel_starts_its_clock() {
        let first = beat_running(canceled_at(10_000), 15_000);
        let told = to_running(&first).clone();
        assert_eq!(told.cancel.as_ref().unwrap().signaled_at, Some(at(15_000)));
        let (attempt, fence) = (1, running().lease.generation);
        let renewed = Renewed { attempt, fence, expires_at: at(45_000), cancel: Some("stop".into()) };
        assert_eq!(first.answer, Ok(Answer::Renewed(renewed)));

        let second = beat_running(told, 25_000);
        assert_eq!(to_running(&second).cancel.as_ref().unwrap().signaled_at, Some(at(15_000)));
        assert_eq!(to_running(&second).lease.expires_at, at(45_000));
    }

    #[test]
    fn a_signal_later_than_one_interval_does_not_lengthen_the_cancel_grace() {
        let late = beat_running(canceled_at(10_000), 45_000);
        assert_eq!(to_running(&late).lease.expires_at, at(60_000));
    }

    #[test]
    fn after_the_cancel_grace_the_heartbeat_is_refused_and_the_task_is_canceled() {
        let over = beat_running(canceled_at(0), 50_000);
        assert_eq!((conflict(&over).kind, conflict(&over).state), (ConflictKind::AttemptClosed, State::Canceled));
        let last = to_finished(&over).carry.last.clone().unwrap();
        assert_eq!(last.reason, Reason::CancelTimeout);
    }

    #[test]
    fn of_progress_and_checkpoint_the_last_value_wins_and_absence_keeps_it() {
        let progress = |pct, message: Option<&str>| Progress { pct, message: message.map(Into::into) };
        let steps: [(Progress, Option<&str>, Progress, Option<&str>); 4] = [
            (progress(Some(40), None), None, progress(Some(40), None), None),
            (progress(None, Some("half")), Some("c1"), progress(Some(40), Some("half")), Some("c1")),
            (progress(Some(30), Some("again")), None, progress(Some(30), Some("again")), Some("c1")),
            (progress(None, None), Some("c2"), progress(Some(30), Some("again")), Some("c2")),
        ];
        let mut held = running();
        for (sent, checkpoint, progress, kept) in steps {
            let command = Heartbeat { progress: sent, checkpoint: checkpoint.map(Into::into), ..heartbeat(1) };
            let decision = with_ctx(1_000, |ctx| decide(&task(Place::Running(held)), &command, &[], &settings(), ctx));
            held = to_running(&decision).clone();
            assert_eq!((&held.progress, held.carry.checkpoint.as_deref()), (&progress, kept));
        }
    }

    #[test]
    fn each_refusal_says_what_became_of_the_lease() {
        let reported = |spec, sent| {
            let sent = testing::reported(1, sent);
            let held = task(Place::Running(running_with(spec)));
            let decision = with_ctx(1_000, |ctx| report::decide(&held, &sent, &[], &settings(), ctx));
            task(decision.change.unwrap().place)
        };
        let revoked = {
            let command = cancel::Cancel {
                task: id(),
                reason: "stop".into(),
                mode: cancel::Mode::Immediate,
                reach: Default::default(),
            };
            let held = whole_task(Place::Running(running()), Spec::default());
            with_ctx(1_000, |ctx| cancel::decide(&held, &command, &settings(), ctx)).change.unwrap().place
        };
        let (second, history) = regranted();
        let alone = task(Place::Running(running_with(Spec { lease_ttl_ms: Some(90_000), ..Spec::default() })));
        for (what, task, seed, history, kind, ack) in [
            ("a token of nobody", &alone, 9, &[][..], ConflictKind::StaleLease, false),
            ("the token of an earlier attempt", &second, 1, &history[..], ConflictKind::StaleAttempt, true),
            ("a token of nobody, after a regrant", &second, 9, &history, ConflictKind::StaleLease, false),
            ("expired, in back-off", &swept(Spec::default()), 1, &[], ConflictKind::LeaseExpired, true),
            ("expired, ready again", &swept(no_backoff()), 1, &[], ConflictKind::LeaseExpired, true),
            ("expired, in the dead letters", &swept(one_attempt()), 1, &[], ConflictKind::LeaseExpired, true),
            ("a token of nobody, in back-off", &swept(Spec::default()), 9, &[], ConflictKind::StaleLease, true),
            ("completed", &reported(Spec::default(), &succeeded("1")), 1, &[], ConflictKind::AttemptClosed, true),
            (
                "failed, in back-off",
                &reported(Spec::default(), &failed("X")),
                1,
                &[],
                ConflictKind::AttemptClosed,
                true,
            ),
            ("taken away", &task(revoked), 1, &[], ConflictKind::AttemptClosed, true),
        ] {
            let refused = conflict(&beat(task, seed, history, 61_000));
            assert_eq!((refused.kind, refused.ack), (kind, ack), "{what}");
        }
    }

    #[test]
    fn the_token_of_an_attempt_renews_no_other_attempt() {
        let (live, over) = (task(Place::Running(running())), swept(Spec::default()));
        let beat = |task: &Task, attempt, now| {
            let command = Heartbeat { attempt, ..heartbeat(1) };
            with_ctx(now, |ctx| decide(task, &command, &[], &settings(), ctx))
        };
        assert!(beat(&live, Some(1), 1_000).answer.is_ok());
        for attempt in [0, 2, u32::MAX] {
            let refused = beat(&live, Some(attempt), 1_000);
            assert_eq!((conflict(&refused).kind, conflict(&refused).attempt), (ConflictKind::StaleAttempt, 1));
            assert_eq!(refused.change, None, "the lease ends when it would have ended");
            assert_eq!(conflict(&beat(&over, Some(attempt), 61_000)).kind, ConflictKind::StaleAttempt);
        }
        assert_eq!(conflict(&beat(&over, Some(1), 61_000)).kind, ConflictKind::LeaseExpired);
    }

    #[test]
    fn past_the_attempt_timeout_the_heartbeat_is_refused() {
        let held = Running {
            lease: lease::Lease { expires_at: at(100_000), ..running().lease },
            ..running_with(Spec { timeout_ms: Some(50_000), ..Spec::default() })
        };
        let refused = beat_running(held, 50_000);
        assert_eq!(conflict(&refused).kind, ConflictKind::LeaseExpired);
    }
}
