//! Limits of tenants: how much one may have waiting and running.

use serde::{Deserialize, Serialize};

/// How much a tenant may have. `None` is the limit of the configuration, 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantLimits {
    /// Tasks that wait: ready, or scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ready: Option<u64>,
    /// Tasks that run. At the limit no submission is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submits_per_second: Option<f64>,
    /// Payloads of all tasks that wait or run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_payload_bytes: Option<u64>,
}

impl TenantLimits {
    /// The tenant's own limits, with the others from `defaults`.
    #[must_use]
    pub fn or(self, defaults: Self) -> Self {
        Self {
            max_ready: self.max_ready.or(defaults.max_ready),
            max_running: self.max_running.or(defaults.max_running),
            submits_per_second: self.submits_per_second.or(defaults.submits_per_second),
            max_payload_bytes: self.max_payload_bytes.or(defaults.max_payload_bytes),
        }
    }

    /// Whether the tasks of the tenant have to be counted.
    pub fn need_usage(&self) -> bool {
        let limits = [self.max_ready, self.max_running, self.max_payload_bytes];
        limits.into_iter().flatten().any(|limit| limit > 0)
    }
}

/// What the tasks of a tenant that have not ended amount to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantUsage {
    pub ready: u64,
    pub scheduled: u64,
    pub running: u64,
    pub payload_bytes: u64,
}

/// What somebody wants to submit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    pub tasks: u64,
    pub bytes: u64,
}

/// A submission that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit {
    pub limit: TenantLimit,
    pub used: u64,
    pub allowed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TenantLimit {
    Waiting,
    Running,
    PayloadBytes,
}

impl TenantUsage {
    /// Accepts a submission that fits and counts it, so that the next one is judged with it.
    pub fn admit(&mut self, limits: &TenantLimits, wanted: Wanted) -> Result<(), OverLimit> {
        let waiting = self.ready + self.scheduled;
        for (limit, allowed, used, more) in [
            (TenantLimit::Waiting, limits.max_ready, waiting, wanted.tasks),
            (TenantLimit::Running, limits.max_running, self.running, 1),
            (TenantLimit::PayloadBytes, limits.max_payload_bytes, self.payload_bytes, wanted.bytes),
        ] {
            if let Some(allowed) = allowed.filter(|allowed| *allowed > 0)
                && used.saturating_add(more) > allowed
            {
                return Err(OverLimit { limit, used, allowed });
            }
        }
        self.ready += wanted.tasks;
        self.payload_bytes += wanted.bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: TenantUsage = TenantUsage { ready: 3, scheduled: 2, running: 4, payload_bytes: 100 };

    fn admit(limits: TenantLimits, tasks: u64, bytes: u64) -> Result<TenantUsage, OverLimit> {
        let mut usage = USED;
        usage.admit(&limits, Wanted { tasks, bytes }).map(|()| usage)
    }

    #[test]
    fn a_submission_fits_up_to_each_limit() {
        let none = TenantLimits::default();
        for (limits, limit, used, allowed) in [
            (TenantLimits { max_ready: Some(7), ..none }, TenantLimit::Waiting, 5, 7),
            (TenantLimits { max_payload_bytes: Some(120), ..none }, TenantLimit::PayloadBytes, 100, 120),
        ] {
            assert!(admit(limits, 2, 20).is_ok(), "{limits:?}");
            assert_eq!(admit(limits, 3, 21), Err(OverLimit { limit, used, allowed }));
        }
        let running = |max| TenantLimits { max_running: Some(max), ..none };
        assert!(admit(running(5), 100, 0).is_ok());
        let over = OverLimit { limit: TenantLimit::Running, used: 4, allowed: 4 };
        assert_eq!(admit(running(4), 1, 0), Err(over));
    }

    #[test]
    fn zero_and_none_are_no_limit() {
        let zero = TenantLimits { max_ready: Some(0), max_running: Some(0), ..TenantLimits::default() };
        for limits in [zero, TenantLimits::default()] {
            assert!(!limits.need_usage());
            assert!(admit(limits, u64::from(u32::MAX), 1).is_ok());
        }
    }

    #[test]
    fn what_is_accepted_counts_for_the_next_one() {
        let limits = TenantLimits { max_ready: Some(7), ..TenantLimits::default() };
        let mut usage = USED;
        assert!(usage.admit(&limits, Wanted { tasks: 2, bytes: 20 }).is_ok());
        assert_eq!(usage, TenantUsage { ready: 5, payload_bytes: 120, ..USED });
        assert!(usage.admit(&limits, Wanted { tasks: 1, bytes: 0 }).is_err());
        assert_eq!(usage.ready, 5, "what is refused is not counted");
    }

    #[test]
    fn own_limits_take_precedence() {
        let own = TenantLimits { max_ready: Some(0), ..TenantLimits::default() };
        let defaults = TenantLimits { max_ready: Some(5), max_running: Some(9), ..TenantLimits::default() };
        assert_eq!(own.or(defaults), TenantLimits { max_ready: Some(0), max_running: Some(9), ..defaults });
    }
}
