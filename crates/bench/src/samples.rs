//! Many durations, and what is said about them.
//!
//! All are kept and sorted, which the crate `hdrhistogram` would not: a run has at most some millions, and the report then
//! shows durations that were measured, not the bounds of buckets.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Durations as they were measured. None is left out, so the maximum is the true one.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub fn extend(&mut self, others: Samples) {
        self.0.extend(others.0);
    }

    pub fn percentiles(mut self) -> Percentiles {
        self.0.sort_unstable();
        let at = |share: f64| {
            // The smallest sample that at least this share of all samples do not exceed.
            let rank = (share * self.0.len() as f64).ceil() as usize;
            self.0.get(rank.saturating_sub(1)).map_or(0.0, |sample| sample.as_secs_f64() * 1e3)
        };
        Percentiles { samples: self.0.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

/// In milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub samples: usize,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let mut samples = Samples::default();
        for ms in (1..=200).rev() {
            samples.push(Duration::from_millis(ms));
        }
        let found = samples.percentiles();
        let expected = Percentiles { samples: 200, p50: 100.0, p90: 180.0, p99: 198.0, max: 200.0 };
        assert_eq!(found, expected);
        let mut one = Samples::default();
        one.push(Duration::from_millis(7));
        let found = one.percentiles();
        assert_eq!((found.p50, found.p99, found.max), (7.0, 7.0, 7.0));
        assert_eq!(Samples::default().percentiles().max, 0.0);
    }
}
