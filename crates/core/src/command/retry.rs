//! Runs an ended task again, on request. Attempt and fence continue from where they were.

use std::sync::Arc;

use super::{Answer, AttemptChange, Change, Context, Decision, NotRetryableReason, Reach, Rejection, Task};
use crate::event::FactKind;
use crate::id::TaskId;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::{Body, Carry, End, Finished, Place, Waiting};
use crate::time::Timestamp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    pub task: TaskId,
    pub reach: Reach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retried {
    /// The last attempt so far.
    pub attempt: u32,
    /// How many attempts it may have in all.
    pub max_attempts: u32,
}

pub fn decide(task: &Task, command: &Retry, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    let Some(body) = task.body.as_ref().filter(|body| command.reach.covers_task(body)) else {
        return Decision::refuse(Rejection::NotFound);
    };
    let refuse = |reason| Decision::refuse(Rejection::NotRetryable { state: task.place.state(), reason });
    if ctx.sealed {
        return refuse(NotRetryableReason::Sealed);
    }
    let finished = match &task.place {
        Place::Finished(finished) if mutant!("success-retried") => finished,
        Place::Finished(finished) if !matches!(finished.end, End::Succeeded | End::Skipped) => finished,
        _ => return refuse(NotRetryableReason::State),
    };
    if ctx.queue_deleted {
        return refuse(NotRetryableReason::QueueDeleted);
    }
    if body.spec.is_past_deadline(ctx.now) {
        return refuse(NotRetryableReason::PastDeadline);
    }
    let (change, max_attempts) = again(body, finished, FactKind::Retried, queue, ctx);
    Decision::accept(change, Answer::Retried(Retried { attempt: finished.attempt, max_attempts }))
}

/// Queues an ended task again and adds the submitted number of attempts to its budget.
pub fn again(
    body: &Arc<Body>,
    finished: &Finished,
    kind: FactKind,
    queue: &QueueSettings,
    ctx: &mut Context<'_>,
) -> (Change, u32) {
    let mut carry = Carry { spec: body.spec, ..finished.carry.clone() };
    carry.extra_attempts = carry.extra_attempts.saturating_add(body.spec.max_attempts());
    carry.handed_back = 0;
    if kind == FactKind::Redriven {
        carry.redrives = carry.redrives.saturating_add(1);
    }
    let max_attempts = carry.allowed_attempts();
    let moved = carry.last.as_deref().cloned();
    let waiting = Waiting {
        queue: finished.queue,
        priority: body.priority,
        at: dead_at(finished, queue).map_or(ctx.now, |dead_at| dead_at.max(ctx.now)),
        fair: queue.fairness_key.as_ref().map(|key| body.fairness_value(key)),
        message: ctx.numbers.take(),
        attempt: if mutant!("retry-starts-again") { 0 } else { finished.attempt },
        fence: finished.fence,
        carry,
    };
    let mut change = Change::to(waiting.at_its_place(ctx.now)).with_fact(body.id, kind, None).with_wake(body.id);
    change.attempts.extend(moved.map(|moved| AttemptChange::Put(Box::new(moved))));
    (change, max_attempts)
}

/// When the last attempt of a strict queue is dead, unless its holder reported its end. The lease itself is gone by now;
/// it lasted no longer than its full time from the moment the attempt ended.
fn dead_at(finished: &Finished, queue: &QueueSettings) -> Option<Timestamp> {
    let last = finished.carry.last.as_ref().filter(|last| last.receipt.is_none())?;
    queue.dead_at(last.ended_at.plus(finished.carry.spec.lease_ttl_ms(queue)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Wake;
    use crate::command::cancel::{self, Cancel, Mode};
    use crate::command::testing::{
        at, failed, granted, id, one_attempt, ready, running, running_with, scheduled_retry, settings, succeeded,
        swept, task, to_waiting, whole_task, with_ctx,
    };
    use crate::command::{report, testing};
    use crate::queue::FairnessKey;
    use crate::task::{Spec, State};

    fn retry(place: Place, spec: Spec, now: i64) -> Decision {
        let command = Retry { task: id(), reach: Reach::All };
        with_ctx(now, |ctx| decide(&whole_task(place, spec), &command, &settings(), ctx))
    }

    fn reported(place: Place, seed: u8, report: &crate::attempt::Report, now: i64) -> Decision {
        let sent = testing::reported(seed, report);
        with_ctx(now, |ctx| report::decide(&task(place), &sent, &[], &settings(), ctx))
    }

    fn canceled() -> Place {
        let command = Cancel { task: id(), reason: "stop".into(), mode: Mode::Immediate, reach: Reach::All };
        let held = whole_task(Place::Running(running()), Spec::default());
        with_ctx(1_000, |ctx| cancel::decide(&held, &command, &settings(), ctx)).change.unwrap().place
    }

    #[test]
    fn a_dead_task_is_ready_again_with_a_longer_budget() {
        let decision = retry(swept(one_attempt()).place, one_attempt(), 70_000);
        assert_eq!(decision.answer, Ok(Answer::Retried(Retried { attempt: 1, max_attempts: 2 })));
        let waiting = to_waiting(&decision);
        assert_eq!((waiting.at, waiting.priority, waiting.message), (at(70_000), 3, 1_000));
        assert_eq!((waiting.attempt, waiting.fence), (1, running().lease.generation));
        assert_eq!((waiting.carry.extra_attempts, waiting.carry.redrives), (1, 0));

        let change = decision.change.unwrap();
        assert_eq!(change.outbox, [Wake { task: id(), queue: running().queue, message: 1_000 }]);
        assert!(matches!(&change.attempts[..], [AttemptChange::Put(moved)] if moved.number == 1));
        assert_eq!(change.facts[0].kind, FactKind::Retried);
    }

    #[test]
    fn in_a_strict_queue_a_lost_attempt_is_dead_before_the_retry() {
        let strict = QueueSettings { strict: true, ..settings() };
        let again = |place| {
            let command = Retry { task: id(), reach: Reach::All };
            with_ctx(70_000, |ctx| decide(&whole_task(place, one_attempt()), &command, &strict, ctx))
        };
        let due = |decision: Decision| match decision.change.unwrap().place {
            Place::Scheduled(waiting) | Place::Ready(waiting) => waiting.at,
            other => panic!("not queued again: {other:?}"),
        };
        // Nobody reported the end at 60 s, and a lease lasts 60 s.
        assert_eq!(due(again(swept(one_attempt()).place)), at(120_000 + crate::limits::STRICT_KILL_MS));
        // Canceled at 1 s, while its holder still ran: dead at 71 s.
        assert_eq!(due(again(canceled())), at(61_000 + crate::limits::STRICT_KILL_MS));
        // The holder itself reported the failure.
        let reported = reported(Place::Running(running_with(one_attempt())), 1, &failed("BROKE"), 2_000);
        assert_eq!(due(again(reported.change.unwrap().place)), at(70_000));
    }

    #[test]
    fn attempt_and_fence_go_on_from_where_they_were() {
        let decision = retry(swept(one_attempt()).place, one_attempt(), 70_000);
        let second = granted(to_waiting(&decision), 2, 70_000);
        assert_eq!(second.attempt, 2);
        assert!(second.lease.generation > running().lease.generation);
    }

    #[test]
    fn each_retry_adds_the_submitted_budget_once_more() {
        let spec = Spec { max_attempts: Some(3), ..Spec::default() };
        let dead = reported(Place::Running(running_with(spec)), 1, &failed("DATA_QUALITY"), 1_000);
        let first = retry(dead.change.unwrap().place, spec, 2_000);
        assert_eq!(first.answer, Ok(Answer::Retried(Retried { attempt: 1, max_attempts: 6 })));
        let held = granted(to_waiting(&first), 2, 3_000);
        let dead = reported(Place::Running(held), 2, &failed("DATA_QUALITY"), 4_000);
        let second = retry(dead.change.unwrap().place, spec, 5_000);
        assert_eq!(second.answer, Ok(Answer::Retried(Retried { attempt: 2, max_attempts: 9 })));
    }

    #[test]
    fn a_canceled_task_can_be_retried_and_is_no_longer_to_be_canceled() {
        let decision = retry(canceled(), Spec::default(), 2_000);
        assert_eq!(granted(to_waiting(&decision), 2, 2_000).cancel, None);
    }

    #[test]
    fn until_the_next_grant_the_last_holder_may_still_complete_a_retried_task() {
        let again = retry(swept(one_attempt()).place, one_attempt(), 70_000).change.unwrap().place;
        let late = reported(again, 1, &succeeded("1"), 71_000);
        assert_eq!(late.change.unwrap().place.state(), State::Succeeded);
        let again = retry(canceled(), Spec::default(), 2_000).change.unwrap().place;
        let refused = reported(again, 1, &succeeded("1"), 3_000);
        assert!(refused.answer.is_err(), "a lease that was taken away does not come back");
    }

    #[test]
    fn only_what_failed_or_was_canceled_can_be_retried() {
        let done = reported(Place::Running(running()), 1, &succeeded("1"), 1_000).change.unwrap().place;
        for place in [Place::Ready(ready()), Place::Scheduled(scheduled_retry()), Place::Running(running()), done] {
            let state = place.state();
            let decision = retry(place, Spec::default(), 1_000);
            let refusal = Rejection::NotRetryable { state, reason: NotRetryableReason::State };
            assert_eq!((decision.change, decision.answer), (None, Err(refusal)));
        }
    }

    #[test]
    fn past_the_deadline_there_is_no_second_chance() {
        let spec = Spec { deadline: Some(at(70_000)), ..one_attempt() };
        let dead = swept(spec).place;
        assert!(retry(dead.clone(), spec, 69_999).answer.is_ok());
        let refusal = Rejection::NotRetryable { state: State::Failed, reason: NotRetryableReason::PastDeadline };
        assert_eq!(retry(dead, spec, 70_000).answer, Err(refusal));
    }

    #[test]
    fn a_task_does_not_return_to_a_queue_that_was_deleted() {
        let dead = whole_task(swept(one_attempt()).place, one_attempt());
        let command = Retry { task: id(), reach: Reach::All };
        let retry = |queue_deleted| {
            with_ctx(70_000, |ctx| {
                ctx.queue_deleted = queue_deleted;
                decide(&dead, &command, &settings(), ctx)
            })
        };
        assert!(retry(false).answer.is_ok());
        let refusal = Rejection::NotRetryable { state: State::Failed, reason: NotRetryableReason::QueueDeleted };
        assert_eq!((retry(true).change, retry(true).answer), (None, Err(refusal)));
    }

    #[test]
    fn the_fairness_value_is_that_of_the_queue_as_it_is_now() {
        let queue = QueueSettings { fairness_key: Some(FairnessKey::Tenant), ..settings() };
        let command = Retry { task: id(), reach: Reach::All };
        let dead = whole_task(swept(one_attempt()).place, one_attempt());
        let decision = with_ctx(70_000, |ctx| decide(&dead, &command, &queue, ctx));
        assert_eq!(to_waiting(&decision).fair.as_deref(), Some("acme"));
    }

    #[test]
    fn a_task_of_another_tenant_is_not_there() {
        let command = Retry { task: id(), reach: Reach::Tenant("other".into()) };
        let dead = whole_task(swept(one_attempt()).place, one_attempt());
        let decision = with_ctx(70_000, |ctx| decide(&dead, &command, &settings(), ctx));
        assert_eq!((decision.change, decision.answer), (None, Err(Rejection::NotFound)));
    }
}
