use std::fmt;

/// Why a text is not a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleError {
    /// The part of the text: `minute`, `hour`, `day of month`, `month`, `day of week`, `rate`, `interval`, `time zone`, or
    /// `schedule` for all of it.
    pub field: &'static str,
    /// Where the fault begins, in characters of the text, counted from 1.
    pub position: usize,
    pub message: String,
}

impl ScheduleError {
    pub(super) fn new(field: &'static str, position: usize, message: impl Into<String>) -> Self {
        Self { field, position, message: message.into() }
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at position {}: {}", self.field, self.position, self.message)
    }
}

impl std::error::Error for ScheduleError {}
