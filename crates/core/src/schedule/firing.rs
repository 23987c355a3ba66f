//! What a schedule of tasks does next: which slot it fires, and what the work of the firing before means for it.
//!
//! A firing has two steps, each written before the next one begins. First the slot is taken into `firing`; from then on it
//! is decided. Then its work is submitted, under a key of schedule and slot, and recorded. A crash in between repeats the
//! submission, which finds the work that is there already.

use serde::{Deserialize, Serialize};

use super::{CatchUp, Jitter, Schedule, ScheduleError};
use crate::id::{RunId, TaskId};
use crate::limits;
use crate::time::{DurationMs, Timestamp};

/// What happens when a slot is due while the work of the last firing has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// The slot is passed over.
    #[default]
    Skip,
    /// The slot waits for the work to end.
    Queue,
    /// The work is canceled, and the slot waits for it to end. Only the newest slot waits.
    CancelOld,
}

impl Overlap {
    pub const ALL: [Self; 3] = [Self::Skip, Self::Queue, Self::CancelOld];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Queue => "queue",
            Self::CancelOld => "cancel_old",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

/// When a schedule fires, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Definition {
    /// Five fields or a rate. Either this or `interval_ms` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval_ms: Option<DurationMs>,
    pub timezone: String,
    #[serde(default)]
    pub catch_up: CatchUp,
    #[serde(default)]
    pub overlap: Overlap,
    #[serde(default)]
    pub jitter_ms: DurationMs,
    /// The first slot is not before this; intervals are counted from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<Timestamp>,
    /// The last slot is not after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
}

impl Definition {
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        match (&self.cron, self.interval_ms) {
            (Some(text), None) => Schedule::parse(text, &self.timezone),
            (None, Some(period_ms)) => Schedule::every(period_ms, self.starts_at.unwrap_or(Timestamp::MIN)),
            _ => Err(ScheduleError::new("schedule", 1, "give either a cron expression or an interval")),
        }
    }

    /// The rules for one schedule, named by its id.
    pub fn timing(&self, id: u128) -> Result<Timing, ScheduleError> {
        Ok(Timing {
            schedule: self.schedule()?,
            catch_up: self.catch_up,
            overlap: self.overlap,
            jitter: Jitter { id, max_ms: self.jitter_ms },
            starts_at: self.starts_at,
            ends_at: self.ends_at,
        })
    }
}

/// What a firing submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Task(TaskId),
    Run(RunId),
}

impl Serialize for Work {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Task(id) => serializer.serialize_str(&id.to_ulid_text()),
            Self::Run(id) => serializer.collect_str(id),
        }
    }
}

impl<'de> Deserialize<'de> for Work {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let read = if text.starts_with("run_") {
            RunId::parse(&text).map(Self::Run)
        } else {
            TaskId::parse(&text).map(Self::Task)
        };
        read.map_err(serde::de::Error::custom)
    }
}

/// What became of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its work was submitted.
    Fired,
    /// Submitted by hand; the slot is the time of the request.
    Triggered,
    /// Passed over: the work of the firing before had not ended, or the schedule was paused while the slot waited.
    Skipped,
    /// Passed over: nothing could fire it in time.
    Missed,
    /// Its work was refused.
    Refused,
}

impl Outcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fired => "fired",
            Self::Triggered => "triggered",
            Self::Skipped => "skipped",
            Self::Missed => "missed",
            Self::Refused => "refused",
        }
    }
}

/// An entry of the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Firing {
    pub slot: Timestamp,
    /// The last of several slots that were passed over together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<Timestamp>,
    pub outcome: Outcome,
    pub at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Where a schedule stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScheduleState {
    /// The first slot that has not been judged; `None` if there are no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Timestamp>,
    /// Slots that are due and have not been fired, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Timestamp>,
    /// The slot whose work is being submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firing: Option<Timestamp>,
    /// The work of the last firing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Work>,
    /// That work was told to stop, for a newer slot.
    #[serde(default)]
    pub canceled: bool,
    /// What happened last, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Firing>,
}

impl ScheduleState {
    /// The slot in `firing` has its work, or the reason why it was refused.
    pub fn fired(&mut self, slot: Timestamp, at: Timestamp, work: Result<Work, String>) {
        self.firing = None;
        self.canceled = false;
        let (outcome, work, reason) = match work {
            Ok(work) => (Outcome::Fired, Some(work), None),
            Err(reason) => (Outcome::Refused, None, Some(reason)),
        };
        // What was refused leaves the work before it as the last one.
        self.last = work.or(self.last);
        self.remember(Firing { slot, through: None, outcome, at, work, reason });
    }

    /// Work was submitted by hand. The next slot is judged against it.
    pub fn triggered(&mut self, at: Timestamp, work: Work) {
        if self.last == Some(work) {
            return;
        }
        self.last = Some(work);
        self.canceled = false;
        let outcome = Outcome::Triggered;
        self.remember(Firing { slot: at, through: None, outcome, at, work: Some(work), reason: None });
    }

    /// Slots that wait are dropped; one that is being fired is finished.
    pub fn pause(&mut self, now: Timestamp) {
        self.pass_over_waiting(self.waiting.len(), now, "the schedule was paused");
    }

    fn pass_over_waiting(&mut self, count: usize, at: Timestamp, reason: &str) {
        let dropped: Vec<Timestamp> = self.waiting.drain(..count.min(self.waiting.len())).collect();
        if let (Some(first), Some(last)) = (dropped.first(), dropped.last()) {
            self.pass_over(Outcome::Skipped, (*first, *last), at, Some(reason.to_owned()));
        }
    }

    fn pass_over(&mut self, outcome: Outcome, slots: (Timestamp, Timestamp), at: Timestamp, reason: Option<String>) {
        let (slot, last) = slots;
        let through = (last != slot).then_some(last);
        self.remember(Firing { slot, through, outcome, at, work: None, reason });
    }

    fn remember(&mut self, firing: Firing) {
        self.history.insert(0, firing);
        self.history.truncate(limits::SCHEDULE_HISTORY);
    }
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Nothing,
    /// Tell the work of the last firing to stop.
    CancelLast,
    /// Submit the work of this slot, which is in `firing`.
    Fire(Timestamp),
}

/// The rules of one schedule.
#[derive(Debug, Clone)]
pub struct Timing {
    schedule: Schedule,
    catch_up: CatchUp,
    overlap: Overlap,
    jitter: Jitter,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
}

const STILL_RUNNING: &str = "the work of the last firing had not ended";

impl Timing {
    /// Slots that come after `after`, at most `limit`.
    pub fn upcoming(&self, after: Timestamp, limit: usize) -> Vec<Timestamp> {
        let after = self.starts_at.map_or(after, |start| after.max(start.plus(-1)));
        self.schedule.slots_between(after, self.ends_at.unwrap_or(Timestamp::MAX), limit)
    }

    /// Judges what is due. The state is written before anything is done about the step.
    pub fn step(&self, state: &mut ScheduleState, now: Timestamp, paused: bool, last_ended: bool) -> Step {
        if let Some(slot) = state.firing {
            return Step::Fire(slot);
        }
        if paused {
            return Step::Nothing;
        }
        self.collect(state, now);
        if !last_ended && !state.waiting.is_empty() {
            return self.overlapping(state, now);
        }
        if self.overlap == Overlap::CancelOld {
            state.pass_over_waiting(state.waiting.len().saturating_sub(1), now, "a newer slot was due");
        }
        if state.waiting.is_empty() {
            return Step::Nothing;
        }
        let slot = state.waiting.remove(0);
        state.firing = Some(slot);
        Step::Fire(slot)
    }

    fn overlapping(&self, state: &mut ScheduleState, now: Timestamp) -> Step {
        match self.overlap {
            Overlap::Skip => state.pass_over_waiting(state.waiting.len(), now, STILL_RUNNING),
            Overlap::Queue => {}
            Overlap::CancelOld => {
                state.pass_over_waiting(state.waiting.len().saturating_sub(1), now, "a newer slot was due");
                if !state.canceled {
                    return Step::CancelLast;
                }
            }
        }
        Step::Nothing
    }

    /// Moves slots that are due from `next` to `waiting`.
    fn collect(&self, state: &mut ScheduleState, now: Timestamp) {
        let Some(next) = state.next else { return };
        let end = self.ends_at.unwrap_or(Timestamp::MAX);
        // What lies behind the end is not there.
        let due = self.schedule.due(next, now, self.catch_up, self.jitter);
        let within = |slot: &Timestamp| *slot <= end;
        let mut fire: Vec<Timestamp> = due.fire.into_iter().filter(within).collect();
        let mut missed = due.missed.filter(|(first, _)| within(first)).map(|(first, last)| (first, last.min(end)));
        if due.next.is_none_or(|next| next > end) && fire.is_empty() && self.catch_up == CatchUp::Latest {
            // The latest slot was behind the end: the one before it is the latest.
            fire = self.schedule.last_slots(next.plus(-1), end.min(now), 1);
            missed = fire
                .first()
                .filter(|slot| **slot > next)
                .and_then(|slot| self.schedule.last_before(*slot, next.plus(-1)).map(|last| (next, last)));
        }
        if let Some(slots) = missed {
            state.pass_over(Outcome::Missed, slots, now, None);
        }
        state.next = due.next.filter(within);
        let room = limits::SCHEDULE_CATCH_UP.saturating_sub(state.waiting.len());
        if let Some(first) = fire.get(room) {
            let last = fire.last().unwrap_or(first);
            let reason = format!("{} slots wait already", limits::SCHEDULE_CATCH_UP);
            state.pass_over(Outcome::Skipped, (*first, *last), now, Some(reason));
        }
        fire.truncate(room);
        state.waiting.append(&mut fire);
    }

    /// When the schedule must be looked at again; `None` if never.
    pub fn look_at(&self, state: &ScheduleState, now: Timestamp, paused: bool) -> Option<Timestamp> {
        if state.firing.is_some() {
            return Some(now);
        }
        if paused {
            return None;
        }
        let waiting = (!state.waiting.is_empty()).then(|| now.plus(limits::SCHEDULE_RECHECK_MS));
        let next = state.next.map(|slot| self.jitter.due_at(slot));
        [waiting, next].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
