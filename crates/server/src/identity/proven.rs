//! Workers that have shown a credential of their own. Whoever shares a token cannot speak for them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A signed token lives for 15 minutes at most, and its worker asks for the next one in time.
const KEPT: Duration = Duration::from_secs(20 * 60);
const WORKERS: usize = 50_000;

/// Names of workers with signed tokens are in no configuration: they are known once they have called.
#[derive(Debug, Default)]
pub struct Proven {
    seen: Mutex<HashMap<String, Instant>>,
}

impl Proven {
    pub fn saw(&self, worker: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = seen.get_mut(worker) {
            *at = Instant::now();
            return;
        }
        if seen.len() >= WORKERS {
            seen.retain(|_, at| at.elapsed() < KEPT);
        }
        if seen.len() < WORKERS {
            seen.insert(worker.to_owned(), Instant::now());
        }
    }

    pub fn knows(&self, worker: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(worker).is_some_and(|at| at.elapsed() < KEPT)
    }
}
