//! How long tasks waited and attempts ran, for the metrics. Nothing is decided by it.

use crate::attempt::AttemptState;
use crate::task::Place;
use crate::time::DurationMs;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// A task was granted after it had been ready for so long.
    Granted {
        waited_ms: DurationMs,
    },
    Ended {
        ran_ms: DurationMs,
        state: AttemptState,
    },
}

impl Timing {
    pub(super) fn of(before: &Place, after: &Place) -> Option<Self> {
        match (before, after) {
            (Place::Running(old), Place::Running(new)) if old.attempt == new.attempt => None,
            (Place::Ready(waiting) | Place::Scheduled(waiting), Place::Running(running)) => {
                Some(Self::Granted { waited_ms: running.granted_at.since(waiting.at).max(0) })
            }
            (Place::Running(running), after) => {
                let ended = after.last_attempt().filter(|last| last.number == running.attempt)?;
                Some(Self::Ended { ran_ms: ended.ended_at.since(running.granted_at).max(0), state: ended.state })
            }
            _ => None,
        }
    }
}
