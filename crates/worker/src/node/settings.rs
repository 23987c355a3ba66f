use std::time::Duration;

/// The times and bounds that a worker keeps.
#[derive(Debug, Clone)]
pub struct NodeSettings {
    /// Sandboxes at a time; 0 is without a bound.
    pub max_sandboxes: usize,
    /// Asked for with each renewal.
    pub lease_ttl: Duration,
    pub renewal_interval: Duration,
    pub heartbeat_interval: Duration,
    /// How long a sandbox whose lease lapsed stays frozen before it is destroyed.
    pub lease_grace: Duration,
    /// How long a sandbox may outlive its time to live.
    pub ttl_grace: Duration,
    /// Waits after failed calls grow from the first to the second.
    pub retry_wait: (Duration, Duration),
    /// For the answer to a heartbeat or a renewal.
    pub call_timeout: Duration,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            max_sandboxes: 0,
            lease_ttl: Duration::from_secs(60),
            renewal_interval: Duration::from_secs(20),
            heartbeat_interval: Duration::from_secs(30),
            lease_grace: Duration::from_secs(5 * 60),
            ttl_grace: Duration::from_secs(30),
            retry_wait: (Duration::from_secs(1), Duration::from_secs(30)),
            call_timeout: Duration::from_secs(10),
        }
    }
}

/// Between nine and eleven tenths of `full`, so that many workers do not call at once.
pub(super) fn jittered(full: Duration) -> Duration {
    full.mul_f64(0.9 + 0.2 * random())
}

/// The wait after `failures` failed tries in a row: doubling, cut by up to a half at random.
pub(super) fn backoff((first, longest): (Duration, Duration), failures: u32) -> Duration {
    let full = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(longest);
    full.mul_f64(0.5 + 0.5 * random())
}

/// From 0 to 1.
fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}
