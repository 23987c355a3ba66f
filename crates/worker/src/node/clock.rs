//! Time that no clock change moves.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time on the clock that runs since the machine started, also while it sleeps. It stays comparable when the
/// worker restarts, but not when the machine does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment {
    millis: u64,
}

impl Moment {
    /// Before every other moment.
    pub(crate) const START: Self = Self { millis: 0 };

    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME)
            .unwrap_or_else(|error| panic!("Linux has had this clock since 2.6.39: {error}"));
        Self { millis: u64::try_from(Duration::from(now).as_millis()).unwrap_or(u64::MAX) }
    }

    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self { millis: self.millis.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)) }
    }

    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self { millis: self.millis.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)) }
    }

    /// How long it is until then; zero if it has passed.
    pub fn left(self) -> Duration {
        Duration::from_millis(self.millis.saturating_sub(Self::now().millis))
    }

    pub fn has_passed(self) -> bool {
        Self::now() >= self
    }
}

/// Which start of the machine this is.
pub(crate) fn machine_start() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
