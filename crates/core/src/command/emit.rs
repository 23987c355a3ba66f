//! A holder tells of what it has written before its task has ended.

use std::sync::Arc;

use super::{Answer, Change, Conflict, ConflictKind, Context, Decision, Rejection, Task, expire};
use crate::attempt::ClosedAttempt;
use crate::dag::DataReport;
use crate::id::{LeaseToken, TaskId, WorkerId};
use crate::queue::QueueSettings;
use crate::task::{End, Place, Running};

#[derive(Debug, Clone, PartialEq)]
pub struct Emit {
    pub task: TaskId,
    pub attempt: u32,
    pub proof: Proof,
    pub data: Arc<DataReport>,
}

/// What shows that the caller holds the attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    Token(LeaseToken),
    /// A worker that is known by its own identity. It needs a live lease.
    Holder(WorkerId),
    /// A pushed attempt, which only the invoked code knows of. It needs a live lease.
    Pushed,
}

/// What is recorded before the report of an attempt counts like the report: of the live holder, and late for as long as no
/// other attempt was granted.
pub fn decide(task: &Task, command: &Emit, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let (settled, earlier) = expire::settle(task, queue, ctx);
    judge(&settled, command, ctx).after(earlier)
}

fn judge(task: &Task, command: &Emit, ctx: &Context<'_>) -> Decision {
    let refuse = |kind| Decision::refuse(Conflict::at(&task.place, kind));
    let refused = match &task.place {
        Place::Running(running) if running.attempt == command.attempt => judge_holder(running, &command.proof),
        place => match place.last_attempt().filter(|last| last.number == command.attempt) {
            Some(last) => judge_last(task, last, &command.proof, ctx),
            None => Some(ConflictKind::StaleAttempt),
        },
    };
    match (refused, &command.data.refusal) {
        (Some(kind), _) => refuse(kind),
        (None, Some(refusal)) => Decision::refuse(Rejection::Data(refusal.clone())),
        (None, None) => {
            let change = Change::to(task.place.clone()).with_data(task.id, command.attempt, &command.data);
            Decision::accept(change, Answer::Done(true))
        }
    }
}

fn judge_holder(running: &Running, proof: &Proof) -> Option<ConflictKind> {
    let holds = match proof {
        Proof::Token(token) => running.lease.token == *token,
        Proof::Holder(worker) => running.lease.holder.as_ref() == Some(worker),
        Proof::Pushed => running.carry.delivery.is_some(),
    };
    (!holds).then_some(ConflictKind::StaleLease)
}

fn judge_last(task: &Task, last: &ClosedAttempt, proof: &Proof, ctx: &Context<'_>) -> Option<ConflictKind> {
    match proof {
        Proof::Token(token) if last.token == *token => {}
        Proof::Token(_) => return Some(ConflictKind::StaleLease),
        Proof::Holder(_) | Proof::Pushed => return Some(ConflictKind::LeaseExpired),
    }
    let canceled = task.place.end() == Some(End::Canceled);
    let past_deadline = task.place.carry().spec.is_past_deadline(ctx.now);
    let late = last.receipt.is_none() && last.reason.yields_to_late_report();
    (!late || canceled || past_deadline || ctx.sealed).then_some(ConflictKind::AttemptClosed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::report;
    use crate::command::testing::{
        conflict, id, regranted, reported, running, settings, succeeded, task, token, with_ctx,
    };
    use crate::dag::data::{NewEvent, Position};
    use crate::dag::{DataRefusal, DatasetId, JobId, VersionId};

    fn data() -> DataReport {
        let event = NewEvent {
            dataset: DatasetId::from_u128(1),
            version: VersionId::from_u128(2),
            position: Position::Cursor(7),
        };
        DataReport { events: vec![event], ..DataReport::of("acme".into(), JobId(3)) }
    }

    fn emit(place: Place, attempt: u32, proof: Proof, now: i64) -> Decision {
        let command = Emit { task: id(), attempt, proof, data: Arc::new(data()) };
        with_ctx(now, |ctx| decide(&task(place), &command, &settings(), ctx))
    }

    fn is_recorded(decision: &Decision) -> bool {
        let recorded = decision.change.as_ref().is_some_and(|change| change.data.iter().any(|it| *it.report == data()));
        assert_eq!(recorded, decision.answer == Ok(Answer::Done(true)));
        recorded
    }

    #[test]
    fn the_holder_is_heard_and_nobody_else() {
        let held = || Place::Running(running());
        let number = running().attempt;
        let decision = emit(held(), number, Proof::Token(token(1)), 1_000);
        assert!(is_recorded(&decision));
        assert_eq!(decision.change.unwrap().place, held(), "nothing else changes");
        let worker = running().lease.holder.unwrap();
        assert!(is_recorded(&emit(held(), number, Proof::Holder(worker), 1_000)));
        for (attempt, proof, kind) in [
            (number, Proof::Token(token(9)), ConflictKind::StaleLease),
            (number, Proof::Holder("other".into()), ConflictKind::StaleLease),
            (number, Proof::Pushed, ConflictKind::StaleLease),
            (number + 1, Proof::Token(token(1)), ConflictKind::StaleAttempt),
        ] {
            let decision = emit(held(), attempt, proof, 1_000);
            assert!(!is_recorded(&decision));
            assert_eq!(conflict(&decision).kind, kind);
        }
    }

    #[test]
    fn an_expired_holder_is_heard_by_its_token_until_another_attempt_is_granted() {
        let (number, over) = (running().attempt, running().lease.expires_at.as_millis() + 1);
        let late = |proof| emit(Place::Running(running()), number, proof, over);
        assert!(is_recorded(&late(Proof::Token(token(1)))));
        let worker = running().lease.holder.unwrap();
        assert_eq!(conflict(&late(Proof::Holder(worker))).kind, ConflictKind::LeaseExpired);
        let decision = emit(regranted().0.place, number, Proof::Token(token(1)), over + 1);
        assert_eq!(conflict(&decision).kind, ConflictKind::StaleAttempt);
    }

    #[test]
    fn a_reported_attempt_has_nothing_to_add() {
        let sent = reported(1, &succeeded("1"));
        let ended =
            with_ctx(1_000, |ctx| report::decide(&task(Place::Running(running())), &sent, &[], &settings(), ctx));
        let decision = emit(ended.change.unwrap().place, running().attempt, Proof::Token(token(1)), 2_000);
        assert_eq!(conflict(&decision).kind, ConflictKind::AttemptClosed);
    }

    #[test]
    fn contents_are_judged_after_the_fence() {
        let refusal = DataRefusal { code: "invalid_event", message: "no".to_owned() };
        let data = DataReport { refusal: Some(refusal.clone()), ..data() };
        let number = running().attempt;
        for (proof, expected) in [
            (Proof::Token(token(1)), Rejection::Data(refusal)),
            (Proof::Token(token(9)), Conflict::at(&Place::Running(running()), ConflictKind::StaleLease)),
        ] {
            let command = Emit { task: id(), attempt: number, proof, data: Arc::new(data.clone()) };
            let held = task(Place::Running(running()));
            let decision = with_ctx(1_000, |ctx| decide(&held, &command, &settings(), ctx));
            assert_eq!((decision.answer, decision.change), (Err(expected), None));
        }
    }
}
