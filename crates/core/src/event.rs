//! Facts: what changed, for watchers. They are recorded with the change and no decision reads them.

use crate::attempt::Reason;
use crate::id::TaskId;
use crate::queue::QueueId;
use crate::run::RunState;
use crate::task::State;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FactKind {
    Submitted,
    Ready,
    Started,
    Succeeded,
    Failed,
    Retrying,
    CancelRequested,
    Canceled,
    DeadLettered,
    Redriven,
    Retried,
    Released,
    /// Granted, and on its way to a worker.
    Dispatched,
    Skipped,
    RunCreated,
    RunCancelRequested,
    RunSucceeded,
    RunFailed,
    RunCanceled,
}

impl FactKind {
    /// Who works on the task should know at once.
    pub const fn is_stop(self) -> bool {
        matches!(self, Self::CancelRequested | Self::Canceled)
    }

    /// Facts are stored by their place in this list: add new ones at its end.
    pub const ALL: [Self; 19] = [
        Self::Submitted,
        Self::Ready,
        Self::Started,
        Self::Succeeded,
        Self::Failed,
        Self::Retrying,
        Self::CancelRequested,
        Self::Canceled,
        Self::DeadLettered,
        Self::Redriven,
        Self::Retried,
        Self::Released,
        Self::Dispatched,
        Self::Skipped,
        Self::RunCreated,
        Self::RunCancelRequested,
        Self::RunSucceeded,
        Self::RunFailed,
        Self::RunCanceled,
    ];

    /// The state of the run, if the fact is about one. Such a fact names a run instead of a task, and no queue.
    pub const fn run_state(self) -> Option<RunState> {
        match self {
            Self::RunCreated => Some(RunState::Running),
            Self::RunCancelRequested => Some(RunState::Canceling),
            Self::RunSucceeded => Some(RunState::Succeeded),
            Self::RunFailed => Some(RunState::Failed),
            Self::RunCanceled => Some(RunState::Canceled),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Ready => "ready",
            Self::Started => "started",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Retrying => "retrying",
            Self::CancelRequested => "cancel_requested",
            Self::Canceled => "canceled",
            Self::DeadLettered => "dead_lettered",
            Self::Redriven => "redriven",
            Self::Retried => "retried",
            Self::Released => "released",
            Self::Dispatched => "dispatched",
            Self::Skipped => "skipped",
            Self::RunCreated => "run.created",
            Self::RunCancelRequested => "run.cancel_requested",
            Self::RunSucceeded => "run.succeeded",
            Self::RunFailed => "run.failed",
            Self::RunCanceled => "run.canceled",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    pub kind: FactKind,
    /// The task, or the run if it is one of a run.
    pub task: TaskId,
    pub queue: QueueId,
    /// The state after the change.
    pub state: State,
    pub attempt: u32,
    /// What ended the attempt, where one ended.
    pub reason: Option<Reason>,
}

/// Bytes of an encoded fact.
pub const FACT_BYTES: usize = 28;

impl Fact {
    /// A fixed record, so that a batch's facts are one short row in the store.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let index = |of: usize| of as u8;
        out.push(index(FactKind::ALL.iter().position(|kind| *kind == self.kind).unwrap_or_default()));
        out.push(index(State::ALL.iter().position(|state| *state == self.state).unwrap_or_default()));
        let reason = self.reason.and_then(|reason| Reason::ALL.iter().position(|other| *other == reason));
        out.push(reason.map_or(u8::MAX, index));
        out.push(0);
        out.extend(self.task.as_u128().to_be_bytes());
        out.extend(self.queue.0.to_be_bytes());
        out.extend(self.attempt.to_be_bytes());
    }

    /// `None` for a record of a newer kind than this binary knows.
    pub fn decode(bytes: &[u8; FACT_BYTES]) -> Option<Self> {
        Some(Self {
            kind: *FactKind::ALL.get(usize::from(bytes[0]))?,
            state: *State::ALL.get(usize::from(bytes[1]))?,
            reason: match bytes[2] {
                u8::MAX => None,
                index => Some(*Reason::ALL.get(usize::from(index))?),
            },
            task: TaskId::from_u128(u128::from_be_bytes(bytes[4..20].try_into().ok()?)),
            queue: QueueId(i32::from_be_bytes(bytes[20..24].try_into().ok()?)),
            attempt: u32::from_be_bytes(bytes[24..28].try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_survives_its_encoding() {
        for (index, kind) in FactKind::ALL.into_iter().enumerate() {
            let fact = Fact {
                kind,
                task: TaskId::from_u128(u128::MAX - index as u128),
                queue: QueueId(7),
                state: State::ALL[index % State::ALL.len()],
                attempt: 3,
                reason: (index % 2 == 0).then_some(Reason::Revoked),
            };
            let mut bytes = Vec::new();
            fact.encode(&mut bytes);
            assert_eq!(Fact::decode(bytes.as_slice().try_into().unwrap()), Some(fact));
        }
    }
}
