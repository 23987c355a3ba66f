//! Whether an attempt may still be given something new: keys for the object store, say.

use super::{Conflict, ConflictKind, Rejection};
use crate::task::{Place, State};
use crate::time::Timestamp;

/// The attempt must be the last one that was granted, run, and have a live lease. Time in which no control plane could
/// answer counts here: a holder that comes back renews its lease first.
pub fn check(place: &Place, attempt: u32, now: Timestamp) -> Result<(), Rejection> {
    let conflict = |kind| Err(Conflict::at(place, kind));
    match place {
        Place::Running(running) if running.attempt == attempt => {
            if running.cancel.is_some() {
                // For the holder the task is canceled already.
                let (kind, state) = (ConflictKind::AttemptClosed, State::Canceled);
                return Err(Rejection::Conflict(Conflict { kind, state, dead_lettered: false, attempt, ack: false }));
            }
            if running.lease.expires_at <= now { conflict(ConflictKind::LeaseExpired) } else { Ok(()) }
        }
        _ if place.attempt() != attempt => conflict(ConflictKind::StaleAttempt),
        _ => match place.last_attempt().filter(|last| last.number == attempt) {
            Some(last) if last.receipt.is_none() && last.reason.yields_to_late_report() => {
                conflict(ConflictKind::LeaseExpired)
            }
            _ => conflict(ConflictKind::AttemptClosed),
        },
    }
}

/// Whether a report of this attempt could still be accepted: it runs, or it ended only because its holder was silent and
/// nothing was granted since.
pub fn may_report(place: &Place, attempt: u32) -> bool {
    match place {
        Place::Running(running) => running.attempt == attempt,
        _ => place.last_attempt().is_some_and(|last| {
            last.number == attempt && last.receipt.is_none() && last.reason.yields_to_late_report()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::testing::{at, one_attempt, running, swept};
    use crate::task::{CancelRequest, Spec};

    fn kind(place: &Place, attempt: u32, now: i64) -> Option<(ConflictKind, State)> {
        match check(place, attempt, at(now)) {
            Ok(()) => None,
            Err(Rejection::Conflict(conflict)) => Some((conflict.kind, conflict.state)),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_live_attempt_is_given_anything() {
        let held = running();
        let ends = held.lease.expires_at.as_millis() - at(0).as_millis();
        let place = Place::Running(held.clone());
        assert_eq!(kind(&place, 1, ends - 1), None);
        assert_eq!(kind(&place, 1, ends), Some((ConflictKind::LeaseExpired, State::Running)));
        assert_eq!(kind(&place, 2, ends - 1).map(|(kind, _)| kind), Some(ConflictKind::StaleAttempt));
        assert!(may_report(&place, 1) && !may_report(&place, 2) && !may_report(&place, 0));
        for spec in [Spec::default(), one_attempt()] {
            let expired = swept(spec).place;
            assert_eq!(kind(&expired, 1, ends).map(|(kind, _)| kind), Some(ConflictKind::LeaseExpired));
            assert!(may_report(&expired, 1) && !may_report(&expired, 2));
        }
        let mut canceled = held;
        canceled.cancel = Some(CancelRequest { reason: "r".into(), requested_at: at(0), signaled_at: None });
        assert_eq!(kind(&Place::Running(canceled), 1, 1), Some((ConflictKind::AttemptClosed, State::Canceled)));
    }
}
