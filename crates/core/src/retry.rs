//! When a failed task runs again.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::id::TaskId;
use crate::limits;
use crate::mutant;
use crate::time::DurationMs;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    pub initial_backoff_ms: DurationMs,
    pub factor: f64,
    pub max_backoff_ms: DurationMs,
    pub jitter: Jitter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Jitter {
    Full,
    None,
    /// From half of the back-off to one and a half, after a time-out as well.
    Around,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            initial_backoff_ms: limits::BACKOFF_INITIAL_MS_DEFAULT,
            factor: limits::BACKOFF_FACTOR_DEFAULT,
            max_backoff_ms: limits::BACKOFF_MAX_MS_DEFAULT,
            jitter: Jitter::Full,
        }
    }
}

impl RetryPolicy {
    /// How long to wait after attempt `n`, counted from 1. A time-out waits twice as long, except with [`Jitter::Around`].
    ///
    /// The jitter is drawn from the task id and `n`, so that the same failure judged twice gives the same time.
    pub fn backoff_ms(&self, task: TaskId, n: u32, timed_out: bool) -> DurationMs {
        if mutant!("back-off-ignored") {
            return 0;
        }
        let base = self.base_ms(n);
        let delay = match self.jitter {
            Jitter::None => base,
            Jitter::Around => return base / 2 + (draw(task, n) % (base as u64).max(1)) as DurationMs,
            Jitter::Full => (draw(task, n) % (base as u64 + 1)) as DurationMs,
        };
        if timed_out { delay.saturating_mul(2).min(self.max_backoff_ms) } else { delay }
    }

    fn base_ms(&self, n: u32) -> DurationMs {
        let exponent = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
        let grown = self.initial_backoff_ms as f64 * self.factor.powi(exponent);
        // The cast saturates: infinity becomes the largest number, and then the cap.
        (grown as DurationMs).clamp(0, self.max_backoff_ms)
    }
}

fn draw(task: TaskId, n: u32) -> u64 {
    let mut hash = Sha256::new();
    hash.update(task.as_u128().to_be_bytes());
    hash.update(n.to_be_bytes());
    let digest = hash.finalize();
    digest.iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector_task() -> TaskId {
        TaskId::parse("task_01HGW5N7XHJM4GX29KZRXQP6N9").unwrap()
    }

    #[test]
    fn the_vectors_of_the_notes() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.backoff_ms(vector_task(), 1, false), 1621);
        assert_eq!(policy.backoff_ms(vector_task(), 2, false), 9977);
        assert_eq!(policy.backoff_ms(vector_task(), 3, false), 1234);
        assert_eq!(policy.backoff_ms(vector_task(), 1, true), 3242);
    }

    #[test]
    fn without_jitter_the_delay_grows_by_the_factor_up_to_the_cap() {
        let policy = RetryPolicy { jitter: Jitter::None, ..RetryPolicy::default() };
        let delays: Vec<_> = (1..=8).map(|n| policy.backoff_ms(vector_task(), n, false)).collect();
        assert_eq!(delays, [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000]);
        assert_eq!(policy.backoff_ms(vector_task(), u32::MAX, true), 300_000);
    }

    #[test]
    fn jitter_around_stays_within_half_and_one_and_a_half_also_after_a_time_out() {
        let policy =
            RetryPolicy { initial_backoff_ms: 30_000, factor: 2.0, max_backoff_ms: 600_000, jitter: Jitter::Around };
        for n in 1..=10 {
            let base = (30_000 << (n - 1)).min(600_000);
            let drawn: Vec<_> = (0..200).map(|task| policy.backoff_ms(TaskId::from_u128(task), n, true)).collect();
            assert!(drawn.iter().all(|ms| (base / 2..base * 3 / 2).contains(ms)), "{n}: {drawn:?}");
            assert!(drawn.iter().any(|ms| *ms < base) && drawn.iter().any(|ms| *ms > base), "{n}: {drawn:?}");
            assert_eq!(drawn[7], policy.backoff_ms(TaskId::from_u128(7), n, false));
        }
        assert_eq!(RetryPolicy { initial_backoff_ms: 0, ..policy }.backoff_ms(vector_task(), 3, true), 0);
    }

    #[test]
    fn a_backoff_of_zero_retries_at_once() {
        let policy = RetryPolicy { initial_backoff_ms: 0, ..RetryPolicy::default() };
        assert_eq!(policy.backoff_ms(vector_task(), 5, true), 0);
    }
}
