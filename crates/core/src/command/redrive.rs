//! Releases tasks from the dead letters, a few at a time, as one durable operation.

use super::{Answer, Change, Context, Decision, Task};
use crate::event::FactKind;
use crate::id::Seq;
use crate::mutant;
use crate::queue::QueueSettings;
use crate::task::Place;
use crate::time::Timestamp;

/// One step of a redrive. Its tasks and its progress commit together, so that a restart continues after the last step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redrive {
    pub redrive_id: u128,
    /// Matches of the filter, in order.
    pub rows: Vec<Seq>,
    /// The redrive continues after this row.
    pub cursor: Seq,
    /// No match is left after the cursor.
    pub finished: bool,
    /// Tasks that became dead letters after the redrive began are not released.
    pub started_at: Timestamp,
}

/// Changes nothing when the task is no longer in the dead letters (another redrive or a person was first), or when its
/// queue was deleted.
pub fn decide(task: &Task, command: &Redrive, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    match release(task, command, queue, ctx) {
        Some(change) => Decision::accept(change, Answer::Done(true)),
        None => Decision::unchanged(Answer::Done(false)),
    }
}

fn release(task: &Task, command: &Redrive, queue: &QueueSettings, ctx: &mut Context<'_>) -> Option<Change> {
    let body = task.body.as_ref()?;
    let Place::Finished(finished) = &task.place else { return None };
    let dead = finished.dead_lettered_at.is_some_and(|at| at <= command.started_at || mutant!("redrive-repeated"));
    if !dead || ctx.sealed || ctx.queue_deleted || body.spec.is_past_deadline(ctx.now) {
        return None;
    }
    Some(super::retry::again(body, finished, FactKind::Redriven, queue, ctx).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{
        at, granted, id, one_attempt, ready, running, running_with, settings, swept, task, whole_task, with_ctx,
    };
    use crate::command::{AttemptChange, expire};
    use crate::task::{Spec, Waiting};

    fn redrive(started_at: i64) -> Redrive {
        Redrive {
            redrive_id: 1,
            rows: vec![id().seq()],
            cursor: id().seq(),
            finished: true,
            started_at: at(started_at),
        }
    }

    fn step(place: Place, spec: Spec, started_at: i64, now: i64) -> Option<Change> {
        with_ctx(now, |ctx| decide(&whole_task(place, spec), &redrive(started_at), &settings(), ctx)).change
    }

    fn released(change: &Change) -> &Waiting {
        match &change.place {
            Place::Ready(waiting) => waiting,
            other => panic!("not ready: {other:?}"),
        }
    }

    #[test]
    fn a_dead_letter_of_a_deleted_queue_stays_one() {
        let dead = whole_task(swept(one_attempt()).place, one_attempt());
        let decision = with_ctx(70_000, |ctx| {
            ctx.queue_deleted = true;
            decide(&dead, &redrive(60_000), &settings(), ctx)
        });
        assert_eq!((decision.change, decision.answer), (None, Ok(Answer::Done(false))));
    }

    #[test]
    fn a_dead_letter_is_ready_again_and_counts_the_redrive() {
        let change = step(swept(one_attempt()).place, one_attempt(), 60_000, 70_000).unwrap();
        let waiting = released(&change);
        assert_eq!((waiting.attempt, waiting.carry.redrives, waiting.carry.extra_attempts), (1, 1, 1));
        assert!(matches!(&change.attempts[..], [AttemptChange::Put(moved)] if moved.number == 1));
        assert_eq!(change.facts[0].kind, FactKind::Redriven);
        assert!(granted(waiting, 2, 70_000).lease.generation > running().lease.generation);
    }

    #[test]
    fn a_task_is_released_once() {
        let change = step(swept(one_attempt()).place, one_attempt(), 65_000, 70_000).unwrap();
        assert_eq!(step(change.place.clone(), one_attempt(), 65_000, 70_001), None);

        // Even when it dies once more while the same redrive still goes on.
        let held = granted(released(&change), 2, 71_000);
        let dead = with_ctx(200_000, |ctx| expire::settle(&task(Place::Running(held)), &settings(), ctx).0);
        assert_eq!(step(dead.place.clone(), one_attempt(), 65_000, 200_001), None);
        let later = step(dead.place, one_attempt(), 200_000, 200_001).unwrap();
        assert_eq!(released(&later).carry.redrives, 2);
    }

    #[test]
    fn what_died_after_the_redrive_began_is_not_its_business() {
        let dead = swept(one_attempt()).place;
        assert_eq!(step(dead.clone(), one_attempt(), 59_999, 70_000), None);
        assert!(step(dead, one_attempt(), 60_000, 70_000).is_some());
    }

    #[test]
    fn what_is_not_in_the_dead_letters_is_left_alone() {
        let kept_out = {
            let queue = QueueSettings { no_dead_letter: true, ..settings() };
            let held = task(Place::Running(running_with(one_attempt())));
            with_ctx(60_000, |ctx| expire::settle(&held, &queue, ctx).0).place
        };
        for place in [Place::Ready(ready()), Place::Running(running()), kept_out] {
            assert_eq!(step(place, one_attempt(), 70_000, 70_000), None);
        }
    }

    #[test]
    fn past_the_deadline_nothing_is_released() {
        let spec = Spec { deadline: Some(at(70_000)), ..one_attempt() };
        assert!(step(swept(spec).place, spec, 65_000, 69_999).is_some());
        assert_eq!(step(swept(spec).place, spec, 65_000, 70_000), None);
    }
}
