//! What an observer of all requests, answers and rows would note, and the rules that it finds broken.
//!
//! It shares no code with the decisions. It knows who was granted what and until when, who was told what, and what time
//! it is; from that alone it says what must not have happened.

use tenure_core::attempt::{AttemptState, ClosedAttempt, Reason, Receipt};
use tenure_core::batch::Outcome;
use tenure_core::command::cancel::Mode;
use tenure_core::command::claim::Grant;
use tenure_core::command::{Answer, Command};
use tenure_core::task::{End, Place};

use crate::model::plane::{Row, Store, ticks};
use crate::model::system::{Content, Failing, Msg, Worker, at, credentials, result_text};

/// The rules, by the names of the properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    OneLease,
    FenceGrows,
    OneCompletion,
    SameAnswer,
    NoStaleWrite,
    GraceHolds,
    OwnTime,
    CancelIsFinal,
    ExpiredStaysExpired,
    RevokedStaysRevoked,
    EndedStaysEnded,
    EndIsTimed,
}

/// What was granted, in the order of grants. Its place in the list is its name everywhere in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Granted {
    pub task: u8,
    pub worker: u8,
    pub boot: u8,
    pub claim: u8,
    pub fence: u64,
    /// The answer reached the worker.
    pub received: bool,
    /// The worker was told to stop.
    pub told: bool,
    /// The first report that arrived.
    pub said: Option<Msg>,
    /// The report that was accepted, and its answer.
    pub reported: Option<(Msg, Receipt)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ledger {
    /// Until when the last holder was told that it holds, in ticks.
    pub promised: u8,
    /// When it was last told.
    pub extended: u8,
    /// When the task was to be canceled.
    pub asked: u8,
    pub cancel_asked: bool,
    pub revoked: bool,
    /// A report was accepted that leaves nothing to be done.
    pub ended: bool,
    pub completed: Option<Completed>,
    /// A lease that had run out was renewed within the outage grace.
    pub spared: bool,
    /// A lease from after an outage expired while those from before had their grace.
    pub not_spared: bool,
}

/// The completion that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Completed {
    pub grant: u8,
    pub content: Content,
    /// The lease had run out before.
    pub late: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Audit {
    pub grants: Vec<Granted>,
    pub tasks: Vec<Ledger>,
    /// When the last outage ended, and until when leases from before are held back.
    gap: Option<(u8, u8)>,
    broken: u16,
}

/// One committed command, as the observer sees it.
pub struct Seen<'a> {
    pub command: &'a Command,
    /// The message that carried it, if one did.
    pub msg: Option<Msg>,
    pub outcome: &'a Outcome,
    pub before: &'a Store,
    pub after: &'a Store,
    pub workers: &'a [Worker],
    pub now: u8,
    /// Nobody has said for a while that it is alive: no lease may expire now.
    pub in_silence: bool,
}

impl Audit {
    pub fn new(tasks: usize) -> Self {
        Self { grants: Vec::new(), tasks: vec![Ledger::default(); tasks], gap: None, broken: 0 }
    }

    pub fn holds(&self, rule: Rule) -> bool {
        self.broken & (1 << rule as u16) == 0
    }

    fn insist(&mut self, rule: Rule, holds: bool) {
        self.broken |= u16::from(!holds) << rule as u16;
    }

    pub fn last_grant(&self, task: u8) -> Option<u8> {
        self.grants.iter().rposition(|granted| granted.task == task).map(|index| index as u8)
    }

    pub fn observe_mark(&mut self, now: u8, after_silence: bool, longest_lease: u8) {
        if after_silence {
            let until = self.gap.map_or(0, |(_, until)| until);
            self.gap = Some((now, until.max(now + longest_lease)));
        }
    }

    /// Whether what began at `since` may not end yet.
    fn is_covered(&self, seen: &Seen<'_>, since: u8) -> bool {
        seen.in_silence || self.gap.is_some_and(|(ended, until)| since <= ended && seen.now < until)
    }

    pub fn observe(&mut self, seen: &Seen<'_>) {
        self.observe_ends(seen);
        match (seen.msg, seen.outcome) {
            (Some(Msg::Claim { worker, boot, claim }), Ok(Answer::Claimed(claimed))) => {
                for grant in &claimed.grants {
                    self.observe_grant(seen, grant, (worker, boot, claim));
                }
            }
            (Some(Msg::Heartbeat { grant }), Ok(Answer::Renewed(renewed))) => {
                self.insist(Rule::NoStaleWrite, self.is_last(grant));
                let task = usize::from(self.grants[usize::from(grant)].task);
                let Ledger { promised, extended, .. } = self.tasks[task];
                let alive = seen.now < promised;
                self.insist(Rule::ExpiredStaysExpired, alive || self.is_covered(seen, extended));
                self.tasks[task].spared |= !alive;
                self.tasks[task].promised = ticks(renewed.expires_at);
                self.tasks[task].extended = seen.now;
            }
            (Some(Msg::Forged { .. }), outcome) => self.insist(Rule::NoStaleWrite, outcome.is_err()),
            (Some(msg @ (Msg::Complete { grant, .. } | Msg::Fail { grant, .. })), outcome) => {
                self.observe_report(msg, grant, outcome, seen.now);
            }
            _ => {}
        }
        if let (Command::Cancel(cancel), Ok(_)) = (seen.command, seen.outcome) {
            let task = seen.before.index(cancel.task.seq());
            if !self.tasks[task].cancel_asked {
                self.tasks[task].asked = seen.now;
            }
            self.tasks[task].cancel_asked = true;
            self.tasks[task].revoked |= cancel.mode == Mode::Immediate;
        }
    }

    fn is_last(&self, grant: u8) -> bool {
        self.last_grant(self.grants[usize::from(grant)].task) == Some(grant)
    }

    /// Attempts that were open before and are not any more.
    fn observe_ends(&mut self, seen: &Seen<'_>) {
        for (task, row) in seen.before.rows.iter().enumerate() {
            let Place::Running(held) = &row.place else { continue };
            let Some(grant) = self.last_grant(task as u8) else { continue };
            let Granted { worker, boot, .. } = self.grants[usize::from(grant)];
            let Ledger { promised, extended, asked, .. } = self.tasks[task];
            if let (Command::Expire(reaped), Place::Running(_)) = (seen.command, &seen.after.rows[task].place)
                && reaped.row == row.id.seq()
            {
                self.insist(Rule::OwnTime, seen.now < promised || self.is_covered(seen, extended));
            }
            for record in seen.after.rows[task].records(held.attempt_id) {
                self.insist(Rule::EndIsTimed, record.ended_at == at(seen.now));
                let since = match record.reason {
                    Reason::CancelTimeout => asked,
                    Reason::Timeout => 0,
                    _ => extended,
                };
                if is_guess(record) {
                    self.insist(Rule::GraceHolds, !self.is_covered(seen, since));
                    self.tasks[task].not_spared |= self.is_covered(seen, 0);
                }
                if record.reason == Reason::WorkerLost {
                    self.insist(Rule::OneLease, seen.workers[usize::from(worker)].boot > boot);
                }
            }
        }
    }

    fn observe_grant(&mut self, seen: &Seen<'_>, grant: &Grant, (worker, boot, claim): (u8, u8, u8)) {
        let index = seen.before.index(grant.task.seq());
        let task = index as u8;
        let number = (0..self.grants.len()).find(|number| credentials(*number as u8).0 == grant.attempt_id);
        if let Some(number) = number {
            // A repeat of the answer belongs to the claim that was granted, and to no other.
            let Granted { worker: of_worker, claim: of_claim, .. } = self.grants[number];
            self.insist(Rule::OneLease, (of_worker, of_claim) == (worker, claim));
            return;
        }
        let ledger = self.tasks[index];
        if let Some(last) = self.last_grant(task) {
            let closed = seen.after.rows[index].records(credentials(last).0).next();
            let honoured = |record: &ClosedAttempt| !is_guess(record) || seen.now >= ledger.promised;
            self.insist(Rule::OneLease, closed.is_some_and(honoured));
            self.insist(Rule::FenceGrows, grant.fence.0 > self.grants[usize::from(last)].fence);
        }
        self.insist(Rule::CancelIsFinal, !ledger.cancel_asked);
        self.insist(Rule::EndedStaysEnded, !ledger.ended);
        let fence = grant.fence.0;
        let granted =
            Granted { task, worker, boot, claim, fence, received: false, told: false, said: None, reported: None };
        self.grants.push(granted);
        if let Place::Running(held) = &seen.after.rows[index].place {
            self.tasks[index].promised = ticks(held.lease.expires_at);
            self.tasks[index].extended = seen.now;
        }
    }

    fn observe_report(&mut self, msg: Msg, grant: u8, outcome: &Outcome, now: u8) {
        self.grants[usize::from(grant)].said.get_or_insert(msg);
        let granted = self.grants[usize::from(grant)];
        let task = usize::from(granted.task);
        let receipt = match outcome {
            Ok(Answer::Reported(receipt)) => Some(*receipt),
            _ => None,
        };
        if let Some((first, answer)) = granted.reported
            && first == msg
        {
            self.insist(Rule::SameAnswer, receipt == Some(answer));
            return;
        }
        let Some(receipt) = receipt else { return };
        self.insist(Rule::OneCompletion, granted.reported.is_none());
        self.insist(Rule::NoStaleWrite, self.is_last(grant));
        self.insist(Rule::RevokedStaysRevoked, !self.tasks[task].revoked);
        self.tasks[task].ended |= !matches!(msg, Msg::Fail { failing: Failing::Retryable, .. });
        if let Msg::Complete { content, .. } = msg {
            self.insist(Rule::OneCompletion, self.tasks[task].completed.is_none());
            let late = now >= self.tasks[task].promised;
            self.tasks[task].completed.get_or_insert(Completed { grant, content, late });
        }
        self.grants[usize::from(grant)].reported.get_or_insert((msg, receipt));
    }
}

/// An end that the holder had no part in: only time may bring it about.
fn is_guess(record: &ClosedAttempt) -> bool {
    matches!(record.reason, Reason::HeartbeatTimeout | Reason::Timeout | Reason::CancelTimeout)
}

/// Every ended attempt has a state that fits its reason, and the numbers have no gap. The last one is kept with a task
/// that ended, and in the history as well while the task waits.
pub fn history_is_whole(row: &Row) -> bool {
    let mut records: Vec<&ClosedAttempt> = row.history.iter().collect();
    match (&row.place, row.place.last_attempt()) {
        (Place::Finished(_), last) => records.extend(last),
        (_, Some(last)) if records.last() != Some(&last) => return false,
        _ => {}
    }
    let open = u32::from(matches!(row.place, Place::Running(_)));
    let numbered = records.iter().enumerate().all(|(index, record)| record.number as usize == index + 1);
    let told = records.iter().all(|record| {
        let succeeded = (record.state == AttemptState::Succeeded) == (record.reason == Reason::Completed);
        let explained = record.state != AttemptState::Failed || record.failure.is_some();
        succeeded && explained
    });
    numbered && told && row.place.attempt() as usize == records.len() + open as usize
}

/// Once a completion was acknowledged the task has succeeded with that result, for good.
pub fn completion_stands(row: &Row, ledger: &Ledger) -> bool {
    let Some(Completed { grant, content, .. }) = ledger.completed else { return true };
    match &row.place {
        Place::Finished(finished) => {
            finished.end == End::Succeeded && finished.result.as_deref() == Some(&*result_text(grant, content))
        }
        _ => false,
    }
}
