//! Ways to break the rules, one at a time, around the real decisions: what is loaded, asked, written or answered is
//! falsified, as a faulty store, clock or check would do it. Each must be found by the property that forbids it.

use tenure_core::Timestamp;
use tenure_core::attempt::{AttemptState, ClosedAttempt, Failure, Reason, Receipt, Report};
use tenure_core::batch::{Outcome, Writes};
use tenure_core::command::callback::Proof;
use tenure_core::command::{Answer, Command, Conflict, ConflictKind, Rejection};
use tenure_core::id::Fence;
use tenure_core::outage::Marks;
use tenure_core::task::{End, Place, Waiting};

use crate::model::plane::{Store, last_attempt};
use crate::model::system::TICK_MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// Nothing is falsified.
    None,
    /// The reaper takes a lease for shorter than it is.
    EagerReaper,
    /// A claim takes a task away from its holder without closing the attempt.
    GrantWithoutClosing,
    /// The fence is not carried from one grant to the next.
    FenceReset,
    /// Any completion of an ended task is acknowledged.
    CompletionNotCompared,
    /// The receipt of a completed task is written over, as if its holder had been lost.
    ReceiptRewritten,
    /// Receipts are not loaded.
    ReceiptForgotten,
    /// Whatever attempt and token are sent, the current ones are taken for them.
    TokenIgnored,
    /// Every failure is taken for one that can be retried.
    FailureNotFinal,
    /// Nobody knows of the outage.
    NoGrace,
    /// The grace is given to leases from after the outage, too.
    GraceForAll,
    /// When the outage ended is not loaded.
    GapEndForgotten,
    /// The request to cancel is not loaded.
    CancelForgotten,
    /// The end time of an attempt is not written.
    EndTimeLost,
    /// The number of the last attempt is not loaded.
    NumberReused,
    /// Open attempts are not counted.
    SlotsForgotten,
    /// A heartbeat does not look at the end of the lease.
    ExpiryNotSeen,
    /// A lease that was taken away is taken for one that was lost.
    RevocationForgotten,
    /// A completion is acknowledged and not written.
    AnswerWithoutCommit,
    /// A success is written as a failure.
    EndMiswritten,
    /// Whether a push is due is not looked at.
    PushNotDue,
    /// What comes of a push counts, whichever push of the attempt it was.
    DeliveryIgnored,
    /// What comes of a push counts, whichever attempt it was of.
    PushOfAnyAttempt,
    /// That a worker has started is not loaded.
    StartForgotten,
    /// A start does not end the pushing.
    StartKeepsPushing,
}

impl Mutant {
    pub fn tamper_marks(self, marks: Marks) -> Marks {
        match self {
            Self::NoGrace => Marks { alive_at: Timestamp::MAX, ..Marks::NONE },
            Self::GraceForAll => Marks { gap_ended_at: Timestamp::MAX, ..marks },
            Self::GapEndForgotten => Marks { gap_ended_at: Timestamp::MIN, ..marks },
            _ => marks,
        }
    }

    pub fn tamper_open(self, open: usize) -> usize {
        if self == Self::SlotsForgotten { 0 } else { open }
    }

    pub fn tamper_row(self, command: &Command, place: &mut Place, history: &mut [ClosedAttempt]) {
        let reports = matches!(command, Command::Report(_));
        let claims = matches!(command, Command::Claim(_) | Command::ClaimTask(_));
        match (self, &mut *place) {
            (Self::GrantWithoutClosing, Place::Running(held)) if claims => {
                *place = Place::Ready(Waiting {
                    queue: held.queue,
                    priority: held.priority,
                    at: held.granted_at,
                    fair: None,
                    message: held.message,
                    attempt: held.attempt,
                    fence: held.lease.generation,
                    carry: held.carry.clone(),
                });
            }
            (Self::EagerReaper, Place::Running(held)) if matches!(command, Command::Expire(_)) => {
                held.lease.expires_at = held.lease.expires_at.plus(-TICK_MS);
            }
            (Self::ExpiryNotSeen, Place::Running(held)) if matches!(command, Command::Heartbeat(_)) => {
                held.lease.expires_at = Timestamp::MAX;
            }
            (Self::FenceReset, Place::Ready(waiting)) if claims => waiting.fence = Fence(0),
            (Self::NumberReused, Place::Ready(waiting)) if claims => waiting.attempt = 0,
            (Self::CancelForgotten, Place::Running(held)) => held.cancel = None,
            (Self::PushNotDue, Place::Running(held)) if matches!(command, Command::TakePush(_)) => {
                if let Some(delivery) = &mut held.carry.delivery {
                    delivery.next_at = delivery.next_at.map(|_| Timestamp::MIN);
                }
            }
            (Self::StartForgotten, Place::Running(held)) if matches!(command, Command::Callback(_)) => {
                if let Some(delivery) = &mut held.carry.delivery {
                    delivery.started_at = None;
                }
            }
            (Self::ReceiptForgotten, _) if reports => {
                history.iter_mut().for_each(|old| old.receipt = None);
                if let Some(last) = last_attempt(place) {
                    last.receipt = None;
                }
            }
            (Self::ReceiptRewritten, Place::Finished(finished)) if reports && finished.end == End::Succeeded => {
                finished.end = End::Failed;
                finished.result = None;
                let last = finished.carry.last.as_mut().expect("a task that succeeded was attempted");
                last.receipt = None;
                last.reason = Reason::HeartbeatTimeout;
            }
            (Self::RevocationForgotten, Place::Finished(finished)) if reports => {
                let last = finished.carry.last.as_mut().expect("a report has an attempt");
                if last.reason == Reason::Revoked {
                    finished.end = End::Failed;
                    last.reason = Reason::HeartbeatTimeout;
                }
            }
            _ => {}
        }
    }

    pub fn tamper_command(self, command: &Command, store: &Store) -> Command {
        let mut command = command.clone();
        if self == Self::FailureNotFinal
            && let Command::Report(sent) = &mut command
            && let Some(failure) = sent.report.failure().cloned()
        {
            sent.report = Report::failed(Failure { retryable: Some(true), ..failure });
        }
        if self == Self::TokenIgnored
            && let Some(task) = command.task()
        {
            let place = &store.rows[store.index(task.seq())].place;
            let current = match place {
                Place::Running(held) => Some((held.attempt_id, held.lease.token)),
                _ => place.last_attempt().map(|last| (last.id, last.token)),
            };
            match (&mut command, current) {
                (Command::Report(sent), Some((id, token))) => (sent.attempt_id, sent.token) = (id, token),
                (Command::Heartbeat(sent), Some((_, token))) => sent.token = token,
                (Command::Callback(sent), Some((id, _))) => {
                    sent.attempt = place.attempt();
                    sent.proof = Proof { attempt: sent.attempt, attempt_id: id };
                }
                _ => {}
            }
        }
        if let Command::Pushed(pushed) = &mut command
            && let Place::Running(held) = &store.rows[store.index(pushed.row)].place
            && let Some(delivery) = &held.carry.delivery
        {
            if self == Self::PushOfAnyAttempt {
                pushed.attempt_id = held.attempt_id;
            }
            if self == Self::DeliveryIgnored || self == Self::PushOfAnyAttempt {
                pushed.delivery = delivery.deliveries;
            }
        }
        command
    }

    /// Whether the transaction is committed.
    pub fn tamper_writes(self, command: &Command, writes: &mut Writes) -> bool {
        if self == Self::EndTimeLost {
            for (_, closed) in &mut writes.tasks.attempts {
                closed.ended_at = Timestamp::MIN;
            }
        }
        if self == Self::EndMiswritten {
            for (_, finished) in &mut writes.tasks.finish {
                finished.end = End::Failed;
            }
        }
        if self == Self::StartKeepsPushing {
            for (_, held) in &mut writes.tasks.renew {
                if let Some(delivery) = held.carry.delivery.as_mut().filter(|delivery| delivery.next_at.is_none()) {
                    delivery.next_at = Some(Timestamp::MIN);
                }
            }
        }
        !(self == Self::AnswerWithoutCommit && is_completion(command))
    }

    pub fn tamper_outcome(self, command: &Command, outcome: Outcome) -> Outcome {
        match (self, command, &outcome) {
            (
                Self::CompletionNotCompared,
                command,
                Err(Rejection::Conflict(Conflict { kind: ConflictKind::ConflictingCompletion, .. })),
            ) if is_completion(command) => Ok(Answer::Reported(Receipt::Completed)),
            _ => outcome,
        }
    }
}

fn is_completion(command: &Command) -> bool {
    matches!(command, Command::Report(sent) if sent.report.state() == AttemptState::Succeeded)
}
