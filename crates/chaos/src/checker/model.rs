//! One task as a sequential machine: what each operation does to it, and what it must be answered.
//!
//! This is written from the contract and on purpose shares nothing with `tenure-core`.

use super::events::{AttemptInfo, Event, Facts, Outcome, What};
use crate::history::{MAX_BACKOFF_MS, ReportKind};

/// No retry waits longer.
const LONGEST_WAIT_NS: u64 = MAX_BACKOFF_MS * 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    Succeeded,
    Failed,
    Canceled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// Not submitted yet.
    Nowhere,
    /// Scheduled or ready. `from`: not before.
    Waiting {
        from: u64,
    },
    /// Held. `until`: the lease cannot have run out before.
    Running {
        until: u64,
        cancel: bool,
    },
    Done(End),
}

/// How the last attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Last {
    /// There was none, or it runs.
    Open,
    /// Its lease ran out or was taken back: its own report still counts until the next grant.
    Guessed,
    /// By its own report.
    Reported,
    /// A cancel took it away: no report counts any more.
    Revoked,
}

/// The answer to an accepted report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Receipt {
    Completed,
    Failed { requeued: bool, dlq: bool },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub place: Place,
    pub attempt: u32,
    /// Attempts that the budget allows in all.
    pub allowed: u32,
    pub last: Last,
    /// By attempt, from 1: which report was accepted, and what was answered.
    pub receipts: Vec<Option<(usize, Receipt)>>,
    /// Nothing after this can have happened before.
    pub now: u64,
}

impl State {
    pub fn new() -> Self {
        let place = Place::Nowhere;
        Self { place, attempt: 0, allowed: 0, last: Last::Open, receipts: Vec::new(), now: 0 }
    }

    fn receipt(&self, attempt: u32) -> Option<(usize, Receipt)> {
        self.receipts.get(attempt as usize).copied().flatten()
    }

    fn keep_receipt(&mut self, attempt: u32, report: usize, receipt: Receipt) {
        let index = attempt as usize;
        if self.receipts.len() <= index {
            self.receipts.resize(index + 1, None);
        }
        self.receipts[index] = Some((report, receipt));
    }

    /// The states that time and lost answers alone can lead to.
    pub fn inner_steps(&self, facts: &Facts) -> Vec<Self> {
        let mut steps: Vec<Self> = facts.deadline.and_then(|deadline| self.past(deadline)).into_iter().collect();
        let Place::Running { until, cancel } = self.place else { return steps };
        let info = facts.attempt(self.attempt);
        let mut ends = until;
        if let Some(void) = info.void_from {
            ends = ends.min(void);
        }
        let mut expired = self.clone();
        expired.now = self.now.max(ends);
        expired.last = Last::Guessed;
        expired.place = if cancel {
            Place::Done(End::Canceled)
        } else if self.attempt < self.allowed {
            // What a newer process of its worker voided does not wait.
            let from = if info.void_from.is_some() { 0 } else { facts.retried_from(self.attempt, expired.now) };
            Place::Waiting { from }
        } else {
            Place::Done(End::Failed)
        };
        if let (Place::Waiting { .. }, Some(deadline)) = (expired.place, facts.deadline) {
            // No retry would fit in before the deadline.
            let mut failed = expired.clone();
            failed.now = failed.now.max(deadline.saturating_sub(LONGEST_WAIT_NS));
            failed.place = Place::Done(End::Failed);
            steps.push(failed);
        }
        steps.push(expired);
        if info.hidden && !cancel {
            // Taken back because its claimer was gone. It costs nothing of the budget.
            let mut released = self.clone();
            released.last = Last::Guessed;
            released.allowed += 1;
            released.place = Place::Waiting { from: 0 };
            steps.push(released);
        }
        steps
    }

    /// The state after the deadline has passed, if it makes a difference.
    fn past(&self, deadline: u64) -> Option<Self> {
        let mut next = self.clone();
        next.now = next.now.max(deadline);
        match self.place {
            // A report without an answer may have found that no retry fits in before the deadline.
            Place::Waiting { .. } => {
                next.now = self.now.max(deadline.saturating_sub(LONGEST_WAIT_NS));
                next.place = Place::Done(End::Failed);
            }
            Place::Running { cancel, .. } => {
                next.place = Place::Done(if cancel { End::Canceled } else { End::Failed });
                next.last = Last::Revoked;
            }
            Place::Nowhere | Place::Done(_) => return None,
        }
        Some(next)
    }

    /// The state after this event at time `at`, or as soon after as it can be, if its answer is right in this state.
    pub fn apply(&self, event: &Event, at: u64, facts: &Facts) -> Option<Self> {
        let mut next = self.clone();
        next.now = at;
        let right = match &event.what {
            What::Submit { max_attempts, delay_ns } => next.submit(*max_attempts, event.asked + delay_ns),
            What::Grant { attempt } => next.grant(*attempt, event.asked, facts),
            What::Heartbeat { attempt, outcome } => next.heartbeat(*attempt, outcome, event.asked, facts),
            What::Report { attempt, kind, report, outcome } => next.report(*attempt, *kind, *report, outcome, facts),
            What::Cancel { immediate, outcome } => next.cancel(*immediate, outcome),
            What::Retry { outcome } => next.retry(outcome, facts),
            What::Redrive => next.redrive(facts),
            What::Read { state, attempt, fence, report } => self.reads(state, *attempt, *fence, *report, facts),
        };
        right.then_some(next)
    }

    fn submit(&mut self, max_attempts: u32, from: u64) -> bool {
        let new = self.place == Place::Nowhere;
        self.place = Place::Waiting { from };
        self.allowed = max_attempts;
        new
    }

    /// A claim may have waited for the task to be due.
    fn grant(&mut self, attempt: u32, asked: u64, facts: &Facts) -> bool {
        let Place::Waiting { from } = self.place else { return false };
        let right = self.attempt + 1 == attempt;
        self.now = self.now.max(from);
        self.attempt = attempt;
        self.last = Last::Open;
        self.place = Place::Running { until: facts.lives_until(attempt, asked), cancel: false };
        right
    }

    fn heartbeat(&mut self, attempt: u32, outcome: &Outcome<bool>, asked: u64, facts: &Facts) -> bool {
        if attempt > self.attempt {
            return false;
        }
        let refusal = match &mut self.place {
            Place::Running { until, cancel } if attempt == self.attempt => {
                *until = facts.lives_until(attempt, asked);
                let (told, cancel) = (outcome, *cancel);
                return matches!(told, Outcome::Ok(should_cancel) if *should_cancel == cancel);
            }
            _ if attempt < self.attempt => "stale_attempt",
            _ if self.last == Last::Guessed => "lease_expired",
            _ => "attempt_closed",
        };
        matches!(outcome, Outcome::Refused(error) if error == refusal)
    }

    fn report(
        &mut self,
        attempt: u32,
        kind: ReportKind,
        report: usize,
        outcome: &Outcome<Receipt>,
        facts: &Facts,
    ) -> bool {
        if let Some(right) = self.judge_at_deadline(attempt, kind, report, outcome, facts) {
            return right;
        }
        match self.judge(attempt, kind, report, facts) {
            // Whether an unknown one that changes nothing happened makes no difference.
            Ok(receipt) => matches!(outcome, Outcome::Unknown) || *outcome == Outcome::Ok(receipt),
            Err(refusal) => matches!(outcome, Outcome::Refused(error) if error == refusal),
        }
    }

    /// The two answers that only a deadline explains, if it is one of them.
    fn judge_at_deadline(
        &mut self,
        attempt: u32,
        kind: ReportKind,
        report: usize,
        outcome: &Outcome<Receipt>,
        facts: &Facts,
    ) -> Option<bool> {
        let deadline = facts.deadline?;
        if attempt != self.attempt || self.receipt(attempt).is_some() {
            return None;
        }
        let late = self.last == Last::Guessed && matches!(self.place, Place::Waiting { .. } | Place::Done(End::Failed));
        if late && *outcome == Outcome::Refused("attempt_closed".to_owned()) {
            self.now = self.now.max(deadline);
            return Some(true);
        }
        let refused = Receipt::Failed { requeued: false, dlq: true };
        let live = matches!(self.place, Place::Running { cancel: false, .. });
        if live && kind == ReportKind::FailRetryable && self.attempt < self.allowed && *outcome == Outcome::Ok(refused)
        {
            self.now = self.now.max(deadline.saturating_sub(LONGEST_WAIT_NS));
            self.place = Place::Done(End::Failed);
            self.last = Last::Reported;
            self.keep_receipt(attempt, report, refused);
            return Some(true);
        }
        None
    }

    fn judge(&mut self, attempt: u32, kind: ReportKind, report: usize, facts: &Facts) -> Result<Receipt, &'static str> {
        if let Some((accepted, receipt)) = self.receipt(attempt) {
            return if accepted == report { Ok(receipt) } else { Err("conflicting_completion") };
        }
        if attempt != self.attempt {
            // One that is still to be granted is refused by nobody.
            return Err(if attempt < self.attempt { "stale_attempt" } else { "too early" });
        }
        let late = match self.place {
            Place::Running { .. } => false,
            Place::Waiting { .. } | Place::Done(End::Failed) if self.last == Last::Guessed => true,
            _ => return Err("attempt_closed"),
        };
        let canceled = matches!(self.place, Place::Running { cancel: true, .. });
        let dead = self.place == Place::Done(End::Failed);
        let (place, receipt) = match kind {
            ReportKind::Complete => (Place::Done(End::Succeeded), Receipt::Completed),
            // A worker that stopped takes its task out of the dead letters.
            ReportKind::FailCancelled => (Place::Done(End::Canceled), Receipt::Failed { requeued: false, dlq: false }),
            // A late failure of a dead letter only adds its error.
            _ if dead => (self.place, Receipt::Failed { requeued: false, dlq: true }),
            _ if canceled => (Place::Done(End::Canceled), Receipt::Failed { requeued: false, dlq: false }),
            ReportKind::FailRetryable if late || self.attempt < self.allowed => {
                // A late one asks for the retry that waits already.
                let from = match self.place {
                    Place::Waiting { from } => from,
                    _ => facts.retried_from(attempt, self.now),
                };
                (Place::Waiting { from }, Receipt::Failed { requeued: true, dlq: false })
            }
            _ => (Place::Done(End::Failed), Receipt::Failed { requeued: false, dlq: true }),
        };
        self.place = place;
        self.last = Last::Reported;
        self.keep_receipt(attempt, report, receipt);
        Ok(receipt)
    }

    fn cancel(&mut self, immediate: bool, outcome: &Outcome<String>) -> bool {
        let answered = match &mut self.place {
            Place::Nowhere => return false,
            Place::Done(End::Canceled) => "Canceled",
            Place::Done(_) => return matches!(outcome, Outcome::Refused(error) if error == "task_already_terminal"),
            Place::Waiting { .. } => {
                self.place = Place::Done(End::Canceled);
                "Canceled"
            }
            Place::Running { .. } if immediate => {
                self.place = Place::Done(End::Canceled);
                self.last = Last::Revoked;
                "Canceled"
            }
            Place::Running { cancel, .. } => {
                *cancel = true;
                "Running"
            }
        };
        match outcome {
            Outcome::Ok(state) => state == answered,
            Outcome::Refused(_) => false,
            Outcome::Unknown => true,
        }
    }

    fn retry(&mut self, outcome: &Outcome<(u32, u32)>, facts: &Facts) -> bool {
        if !matches!(self.place, Place::Done(End::Failed | End::Canceled)) {
            let refused = matches!(outcome, Outcome::Refused(error) if error == "task_not_retryable");
            return refused && self.place != Place::Nowhere;
        }
        if let (Some(deadline), Outcome::Refused(error)) = (facts.deadline, outcome) {
            self.now = self.now.max(deadline);
            return error == "task_not_retryable";
        }
        self.place = Place::Waiting { from: 0 };
        self.allowed += facts.max_attempts;
        match outcome {
            Outcome::Ok(answered) => *answered == (self.attempt, self.allowed),
            Outcome::Refused(_) => false,
            Outcome::Unknown => true,
        }
    }

    fn redrive(&mut self, facts: &Facts) -> bool {
        let dead = self.place == Place::Done(End::Failed);
        self.place = Place::Waiting { from: 0 };
        self.allowed += facts.max_attempts;
        dead
    }

    fn reads(&self, state: &str, attempt: u32, fence: u64, report: Option<usize>, facts: &Facts) -> bool {
        let right = match self.place {
            Place::Nowhere => false,
            Place::Waiting { .. } => matches!(state, "Ready" | "Scheduled"),
            Place::Running { .. } => state == "Running",
            Place::Done(End::Succeeded) => state == "Succeeded",
            Place::Done(End::Failed) => state == "Failed",
            Place::Done(End::Canceled) => state == "Canceled",
        };
        let known = facts.attempts.get(&attempt).map(|info: &AttemptInfo| info.fence);
        right
            && attempt == self.attempt
            && known.is_none_or(|known| known == fence)
            && report.is_none_or(|report| self.receipt(attempt).is_some_and(|(accepted, _)| accepted == report))
    }
}
