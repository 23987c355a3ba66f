//! A worker process introduces itself.
//!
//! Each process is a new incarnation of its worker. A newer one ends the attempts that an older one of the same name
//! holds, so that a restart does not wait for leases that nobody will renew.

use std::sync::Arc;

use super::{Answer, Context, Decision, Rejection, Task, ending};
use crate::attempt::Reason;
use crate::id::WorkerId;
use crate::queue::QueueSettings;
use crate::task::{Place, Running};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    pub worker: WorkerId,
    /// Ordered by time: the greater one is the newer process.
    pub incarnation: Arc<str>,
}

/// Whether this process is new. Refuses one that is older than a known one.
pub fn decide(known: Option<&str>, command: &Hello) -> Result<bool, Rejection> {
    match known {
        Some(known) if known > &*command.incarnation => Err(Rejection::StaleIncarnation),
        Some(known) if known == &*command.incarnation => Ok(false),
        _ => Ok(true),
    }
}

/// Ends an attempt that an older process of the same worker held.
pub fn void(task: &Task, command: &Hello, queue: &QueueSettings, ctx: &mut Context<'_>) -> Decision {
    match &task.place {
        Place::Running(running) if voids(command, running) => {
            let change = ending::end_attempt(task.id, running, Reason::WorkerLost, queue, ctx);
            Decision::accept(change, Answer::Done(true))
        }
        _ => Decision::unchanged(Answer::Done(false)),
    }
}

/// Whether a lease belongs to an older process of the same worker.
pub(crate) fn voids(command: &Hello, running: &Running) -> bool {
    running.lease.holder.as_ref() == Some(&command.worker)
        && running.incarnation.as_ref().is_some_and(|incarnation| **incarnation < *command.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_process_has_the_name() {
        let hello = Hello { worker: "w".into(), incarnation: "B".into() };
        assert_eq!(decide(None, &hello), Ok(true));
        assert_eq!(decide(Some("A"), &hello), Ok(true));
        assert_eq!(decide(Some("B"), &hello), Ok(false));
        assert_eq!(decide(Some("C"), &hello), Err(Rejection::StaleIncarnation));
    }

    #[test]
    fn only_a_lease_of_an_older_process_of_the_same_name_is_voided() {
        let hello = Hello { worker: "w".into(), incarnation: "B".into() };
        let held = |worker: &str, incarnation: Option<&str>| {
            let mut running = crate::command::testing::running();
            running.lease.holder = Some(worker.into());
            running.incarnation = incarnation.map(Into::into);
            running
        };
        for (worker, incarnation, voided) in [
            ("w", Some("A"), true),
            ("w", Some("B"), false),
            ("w", Some("C"), false),
            ("w", None, false),
            ("v", Some("A"), false),
        ] {
            assert_eq!(voids(&hello, &held(worker, incarnation)), voided, "{worker} {incarnation:?}");
        }
    }
}
