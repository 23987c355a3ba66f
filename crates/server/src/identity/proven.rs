//! Workers that have shown a credential of their own. Whoever shares a token cannot speak for them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::Timestamp;
use tenure_engine::Engine;
use tenure_engine::store::PROVEN_WORKERS_MAX;

use crate::access::guard::unix_now;

/// A signed token lives for 15 minutes at most, and its worker asks for the next one in time.
const KEPT: Duration = Duration::from_secs(20 * 60);
/// A worker that goes on calling is written down again this often.
const REWRITE_AFTER: Duration = Duration::from_secs(5 * 60);
/// How far the clocks of control planes may differ without one missing what another wrote.
const SKEW_MS: i64 = 60_000;

/// Names of workers with signed tokens are in no configuration: they are known once they have called, on every control plane
/// within a few seconds, and after a restart.
#[derive(Debug)]
pub struct Proven {
    engine: Engine,
    seen: Mutex<HashMap<String, Seen>>,
    /// The latest end that was read. Nobody reads what is known over and over.
    read_until: Mutex<Timestamp>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    until: Instant,
    /// What the store says.
    written: Option<Instant>,
}

impl Proven {
    pub fn new(engine: Engine) -> Self {
        Self { engine, seen: Mutex::default(), read_until: Mutex::new(Timestamp::MIN) }
    }

    pub fn saw(&self, worker: &str) {
        self.note(worker, Seen { until: Instant::now() + KEPT, written: None });
    }

    /// The later of what is known and what is new.
    fn note(&self, worker: &str, new: Seen) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = seen.get_mut(worker) {
            *known = Seen { until: known.until.max(new.until), written: known.written.max(new.written) };
            return;
        }
        if seen.len() >= PROVEN_WORKERS_MAX {
            let now = Instant::now();
            seen.retain(|_, seen| seen.until > now);
        }
        if seen.len() < PROVEN_WORKERS_MAX {
            seen.insert(worker.to_owned(), new);
        }
    }

    pub fn knows(&self, worker: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(worker).is_some_and(|seen| seen.until > Instant::now())
    }

    /// Tells other control planes who was seen here, and learns who was seen there. What cannot be written or read now is
    /// tried again.
    pub async fn exchange(&self) {
        let (workers, end) = (self.unwritten(), Instant::now() + KEPT);
        if !workers.is_empty() {
            match self.engine.identity().prove_workers(&workers, from_now(KEPT)).await {
                Ok(()) => workers.iter().for_each(|worker| self.note(worker, Seen { until: end, written: Some(end) })),
                Err(error) => {
                    tracing::debug!(error = error.chain(), "cannot record workers with their own credentials")
                }
            }
        }
        let known = *self.read_until.lock().unwrap_or_else(PoisonError::into_inner);
        let after = known.plus(-SKEW_MS).max(from_now(Duration::ZERO));
        match self.engine.identity().proven_workers(after).await {
            Ok(found) => {
                let latest = found.first().map_or(known, |(_, until)| known.max(*until));
                *self.read_until.lock().unwrap_or_else(PoisonError::into_inner) = latest;
                for (worker, until) in found {
                    let until = Instant::now() + left(until);
                    self.note(&worker, Seen { until, written: Some(until) });
                }
            }
            Err(error) => tracing::debug!(error = error.chain(), "cannot read workers with their own credentials"),
        }
    }

    /// Who was seen a while after what the store says, or is not in it.
    fn unwritten(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = |seen: &Seen| seen.written.is_none_or(|written| seen.until >= written + REWRITE_AFTER);
        seen.iter().filter(|(_, seen)| is_due(seen)).map(|(worker, _)| worker.clone()).collect()
    }
}

fn left(until: Timestamp) -> Duration {
    let left_ms = until.as_millis().saturating_sub(unix_ms());
    Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(KEPT)
}

fn from_now(time: Duration) -> Timestamp {
    Timestamp::from_millis(unix_ms()).plus(i64::try_from(time.as_millis()).unwrap_or(i64::MAX))
}

fn unix_ms() -> i64 {
    unix_now().saturating_mul(1000)
}
