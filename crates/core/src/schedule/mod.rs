//! When something happens again and again: cron expressions, rates and intervals as series of slots.
//!
//! A slot is the point in time that a schedule names. Slots depend on the text and the time zone alone, so every replica
//! finds the same ones. [`Schedule`] is shared by schedules of tasks and by cron sources of DAGs.

mod due;
mod error;
mod firing;
mod parse;
mod slots;

pub use due::{CatchUp, DueSlots, Jitter};
pub use error::ScheduleError;
pub use firing::{Definition, Firing, Outcome, Overlap, ScheduleState, Step, Timing, Work};
pub use parse::timezones;

use croner::Cron;
use jiff::tz::TimeZone;

use crate::time::{DurationMs, Timestamp};

/// A series of slots.
#[derive(Debug, Clone)]
pub struct Schedule(Series);

#[derive(Debug, Clone)]
enum Series {
    Cron { cron: Box<Cron>, zone: TimeZone },
    Every { period_ms: DurationMs, anchor: Timestamp },
}

#[cfg(test)]
mod tests;
