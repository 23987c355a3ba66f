use std::ops::RangeInclusive;

use tenure_core::dag::definition::{HEARTBEAT_TIMEOUT_SECONDS_DEFAULT, Priority, TIMEOUT_SECONDS_MAX};
use tenure_core::limits;

use super::fields::Fields;

const TIMEOUT: RangeInclusive<u32> = 1..=TIMEOUT_SECONDS_MAX;
const ATTEMPTS: RangeInclusive<u32> = 1..=limits::MAX_ATTEMPTS_MAX;
#[allow(clippy::cast_possible_truncation, reason = "an hour in seconds")]
const HEARTBEAT: RangeInclusive<u32> = 1..=(limits::LEASE_TTL_MS_MAX / 1_000) as u32;

/// Keys of `defaults`, which jobs have too.
pub(super) const KEYS: [&str; 4] = ["max_attempts", "heartbeat_timeout_seconds", "timeout_seconds", "priority"];

/// What jobs get that say nothing.
pub(super) struct Defaults {
    pub max_attempts: u32,
    pub heartbeat_timeout_seconds: u32,
    /// `None`: that of the runtime.
    pub timeout_seconds: Option<u32>,
    pub priority: Priority,
}

impl Defaults {
    pub fn read(dag: &Fields<'_, '_>) -> Self {
        let built_in = Self {
            max_attempts: limits::MAX_ATTEMPTS_DEFAULT,
            heartbeat_timeout_seconds: HEARTBEAT_TIMEOUT_SECONDS_DEFAULT,
            timeout_seconds: None,
            priority: Priority::Normal,
        };
        dag.map("defaults", &KEYS).map_or(Self { ..built_in }, |fields| built_in.overridden(&fields))
    }

    /// With what a map sets.
    pub fn overridden(&self, fields: &Fields<'_, '_>) -> Self {
        let priorities = [("normal", Priority::Normal), ("backfill", Priority::Backfill)];
        let heartbeat = fields.number("heartbeat_timeout_seconds", HEARTBEAT);
        Self {
            max_attempts: fields.number("max_attempts", ATTEMPTS).unwrap_or(self.max_attempts),
            heartbeat_timeout_seconds: heartbeat.unwrap_or(self.heartbeat_timeout_seconds),
            timeout_seconds: fields.number("timeout_seconds", TIMEOUT).or(self.timeout_seconds),
            priority: fields.word("priority", &priorities).unwrap_or(self.priority),
        }
    }
}
