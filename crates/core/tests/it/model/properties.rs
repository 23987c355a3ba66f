//! The rules and the examples, as the checker asks for them.

use stateright::Property;
use tenure_core::attempt::{ClosedAttempt, Reason};
use tenure_core::task::Place;

use crate::model::audit::{self, Ledger, Rule};
use crate::model::plane::Row;
use crate::model::system::{State, System};

type Condition = fn(&System, &State) -> bool;
pub type Example = (&'static str, Condition);

pub const ONE_LEASE: &str = "a task has at most one live lease";
pub const FENCE_GROWS: &str = "each grant of a task has a higher fence";
pub const ONE_COMPLETION: &str = "at most one completion of a task is accepted";
pub const SAME_ANSWER: &str = "a report that was accepted gets the same answer again";
pub const NO_STALE_WRITE: &str = "nothing is accepted from a holder that another one followed";
pub const GRACE_HOLDS: &str = "no lease from before the end of an outage expires within the grace";
pub const OWN_TIME: &str = "a lease from after an outage expires in its own time";
pub const CANCEL_IS_FINAL: &str = "a task that was to be canceled is never granted again";
pub const EXPIRED_STAYS_EXPIRED: &str = "an expired lease is never extended";
pub const REVOKED_STAYS_REVOKED: &str = "no report is accepted after an immediate cancel";
pub const ENDED_STAYS_ENDED: &str = "nothing is granted after a report that ends the task";
pub const HISTORY_IS_WHOLE: &str = "every ended attempt is on record, with state, reason, end and number";
pub const SLOTS_HOLD: &str = "no more attempts are open than the queue has slots";
pub const COMPLETION_STANDS: &str = "an accepted completion stands";

pub fn all(examples: &[Example]) -> Vec<Property<System>> {
    let mut properties = rules();
    properties.extend(examples.iter().map(|(name, condition)| Property::sometimes(name, *condition)));
    properties
}

fn always(name: &'static str, condition: Condition) -> Property<System> {
    Property::always(name, condition)
}

fn rules() -> Vec<Property<System>> {
    vec![
        always(ONE_LEASE, |_, state| state.audit.holds(Rule::OneLease)),
        always(FENCE_GROWS, |_, state| state.audit.holds(Rule::FenceGrows)),
        always(ONE_COMPLETION, |_, state| state.audit.holds(Rule::OneCompletion)),
        always(SAME_ANSWER, |_, state| state.audit.holds(Rule::SameAnswer)),
        always(NO_STALE_WRITE, |_, state| state.audit.holds(Rule::NoStaleWrite)),
        always(GRACE_HOLDS, |_, state| state.audit.holds(Rule::GraceHolds)),
        always(OWN_TIME, |_, state| state.audit.holds(Rule::OwnTime)),
        always(CANCEL_IS_FINAL, |_, state| state.audit.holds(Rule::CancelIsFinal)),
        always(EXPIRED_STAYS_EXPIRED, |_, state| state.audit.holds(Rule::ExpiredStaysExpired)),
        always(REVOKED_STAYS_REVOKED, |_, state| state.audit.holds(Rule::RevokedStaysRevoked)),
        always(ENDED_STAYS_ENDED, |_, state| state.audit.holds(Rule::EndedStaysEnded)),
        always(HISTORY_IS_WHOLE, |_, state| {
            state.audit.holds(Rule::EndIsTimed) && state.store.rows.iter().all(|row| audit::history_is_whole(row))
        }),
        always(SLOTS_HOLD, |System(config), state| {
            let open = state.store.rows.iter().filter(|row| matches!(row.place, Place::Running(_))).count();
            config.max_running.is_none_or(|max| open <= max as usize)
        }),
        always(COMPLETION_STANDS, |_, state| tasks(state).all(|(row, ledger)| audit::completion_stands(row, ledger))),
    ]
}

fn tasks(state: &State) -> impl Iterator<Item = (&Row, &Ledger)> {
    state.store.rows.iter().map(AsRef::as_ref).zip(&state.audit.tasks)
}

/// Whether some ended attempt is on record that looks like this.
fn on_record(state: &State, like: fn(&ClosedAttempt) -> bool) -> bool {
    tasks(state).any(|(row, _)| row.history.iter().chain(row.place.last_attempt()).any(like))
}

/// Whether some ended attempt has this reason.
fn ended_by(state: &State, reason: Reason) -> bool {
    tasks(state).any(|(row, _)| row.history.iter().chain(row.place.last_attempt()).any(|ended| ended.reason == reason))
}

pub const SUCCEEDS_AFTER_CRASH: Example = ("a task succeeds after its first worker crashed", |_, state| {
    let first = state.audit.grants.first();
    let crashed = first.is_some_and(|first| state.workers[usize::from(first.worker)].boot > first.boot);
    let other = |done: audit::Completed| done.grant > 0 && state.audit.grants[usize::from(done.grant)].task == 0;
    crashed && state.audit.tasks[0].completed.is_some_and(other)
});

pub const LATE_ACCEPTED: Example = ("a late completion is accepted", |_, state| {
    tasks(state).any(|(_, ledger)| ledger.completed.is_some_and(|done| done.late))
});

pub const OFF_THE_DEAD_LETTERS: Example = ("a late completion takes a task off the dead letters", |system, state| {
    tasks(state).any(|(row, ledger)| {
        ledger.completed.is_some_and(|done| done.late) && row.place.attempt() >= system.0.max_attempts
    })
});

pub const STALE_REFUSED: Example = ("a stale report is refused and kept as evidence", |_, state| {
    tasks(state).any(|(row, _)| {
        row.history
            .iter()
            .any(|old| old.evidence.is_some() && old.receipt.is_none() && old.number < row.place.attempt())
    })
});

pub const CONTRADICTION_KEPT: Example = ("a second, different report is kept as evidence", |_, state| {
    on_record(state, |ended| ended.receipt.is_some() && ended.evidence.is_some())
});

pub const DEAD: Example = ("a task ends in the dead letters", |_, state| {
    tasks(state).any(|(row, _)| matches!(&row.place, Place::Finished(end) if end.dead_lettered_at.is_some()))
});

pub const TIMED_OUT: Example =
    ("an attempt that heartbeats on runs too long", |_, state| ended_by(state, Reason::Timeout));
pub const VOIDED: Example =
    ("a new process voids the lease of the one before", |_, state| ended_by(state, Reason::WorkerLost));
pub const RELEASED: Example =
    ("a grant that reached nobody is taken back", |_, state| ended_by(state, Reason::Undelivered));
pub const STOPPED: Example = ("a holder stops when it is told to", |_, state| ended_by(state, Reason::Canceled));
pub const NOT_STOPPED: Example =
    ("a holder does not stop within its grace", |_, state| ended_by(state, Reason::CancelTimeout));

pub const SUCCEEDS_THOUGH_ASKED: Example = ("a holder succeeds though it was to stop", |_, state| {
    tasks(state).any(|(_, ledger)| ledger.cancel_asked && !ledger.revoked && ledger.completed.is_some())
});

pub const REVOKED_REFUSED: Example = ("the report of a revoked lease is kept as evidence", |_, state| {
    on_record(state, |ended| ended.reason == Reason::Revoked && ended.evidence.is_some())
});

pub const SPARED: Example = ("a lease that ran out in an outage is renewed and its work completed", |_, state| {
    tasks(state).any(|(_, ledger)| ledger.spared && ledger.completed.is_some_and(|done| done.grant == 0))
});

pub const NOT_SPARED: Example =
    ("a lease from after an outage expires within the grace of those from before", |_, state| {
        tasks(state).any(|(_, ledger)| ledger.not_spared)
    });

pub const ALL_DONE: Example =
    ("all tasks succeed", |_, state| tasks(state).all(|(_, ledger)| ledger.completed.is_some()));
