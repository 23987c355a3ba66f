//! How often somebody may call: token buckets by name, in bounded memory.
//!
//! Not the crate `governor`, whose store by key grows with the number of callers, and which cannot look at a bucket without
//! taking from it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How fast a bucket fills, and how much it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allowance {
    pub per_minute: f64,
    pub burst: f64,
}

/// What a bucket said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// Calls that would be let through right now.
    pub remaining: u32,
    /// When the next call is let through; zero if one is now.
    pub retry_after: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, allowance: Allowance, now: Instant) {
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * allowance.per_minute / 60.0;
        self.level = (self.level + grown).min(allowance.burst.max(1.0));
        self.at = self.at.max(now);
    }

    fn verdict(self, allowance: Allowance) -> Verdict {
        let missing = (1.0 - self.level).max(0.0);
        let seconds = if allowance.per_minute > 0.0 { missing * 60.0 / allowance.per_minute } else { 3600.0 };
        Verdict {
            allowed: self.level >= 1.0,
            remaining: self.level.max(0.0) as u32,
            retry_after: Duration::from_secs_f64(seconds.min(3600.0)),
        }
    }
}

/// Buckets by name. Beyond `capacity` those that were idle go first, then any: a flood of names costs others their
/// history and never the process its memory.
#[derive(Debug)]
pub struct Limiter {
    buckets: Mutex<HashMap<String, Bucket>>,
    capacity: usize,
}

/// How many go at a time when all buckets are in use.
const EVICTED_AT_ONCE: usize = 64;

impl Limiter {
    pub fn new(capacity: usize) -> Self {
        Self { buckets: Mutex::default(), capacity }
    }

    /// Takes one call from the bucket, if it has one.
    pub fn take(&self, name: &str, allowance: Allowance, now: Instant) -> Verdict {
        self.take_many(name, allowance, 1.0, now)
    }

    /// Takes `count` from a bucket that is not empty. What it lacks then is made up for before the next: something
    /// larger than the bucket passes once, and is paid for.
    pub fn take_many(&self, name: &str, allowance: Allowance, count: f64, now: Instant) -> Verdict {
        self.with(name, allowance, now, |bucket| {
            let verdict = bucket.verdict(allowance);
            if !verdict.allowed {
                return verdict;
            }
            bucket.level -= count;
            Verdict { remaining: bucket.level.max(0.0) as u32, ..verdict }
        })
    }

    /// What `take` would say, without taking. Makes no bucket.
    pub fn look(&self, name: &str, allowance: Allowance, now: Instant) -> Verdict {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bucket = buckets.get(name).copied().unwrap_or(Bucket { level: allowance.burst.max(1.0), at: now });
        drop(buckets);
        bucket.fill(allowance, now);
        bucket.verdict(allowance)
    }

    fn with<T>(&self, name: &str, allowance: Allowance, now: Instant, use_it: impl FnOnce(&mut Bucket) -> T) -> T {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = buckets.get_mut(name) {
            bucket.fill(allowance, now);
            return use_it(bucket);
        }
        if buckets.len() >= self.capacity {
            let some: Vec<String> = buckets.keys().take(EVICTED_AT_ONCE).cloned().collect();
            metrics::counter!("tenure_rate_limit_evicted_buckets_total").increment(some.len() as u64);
            for name in some {
                buckets.remove(&name);
            }
        }
        let bucket = Bucket { level: allowance.burst.max(1.0), at: now };
        use_it(buckets.entry(name.to_owned()).or_insert(bucket))
    }

    /// Forgets buckets that nobody used for a while. A full bucket that is forgotten is full when it comes back.
    pub fn clean(&self, idle: Duration, now: Instant) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.retain(|_, bucket| now.saturating_duration_since(bucket.at) < idle);
    }

    pub fn len(&self) -> usize {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_A_SECOND: Allowance = Allowance { per_minute: 120.0, burst: 3.0 };

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let (limiter, start) = (Limiter::new(10), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let remaining: Vec<_> = (0..3).map(|_| limiter.take("a", TWO_A_SECOND, start).remaining).collect();
        assert_eq!(remaining, [2, 1, 0]);
        let refused = limiter.take("a", TWO_A_SECOND, start);
        assert!(!refused.allowed);
        assert_eq!(refused.retry_after.as_millis(), 500);
        assert!(limiter.take("b", TWO_A_SECOND, start).allowed, "another name has its own bucket");
        assert!(!limiter.take("a", TWO_A_SECOND, at(499)).allowed);
        assert!(limiter.take("a", TWO_A_SECOND, at(1000)).allowed);
        // A clock reading from before takes nothing back.
        assert!(limiter.take("a", TWO_A_SECOND, at(1000)).allowed);
        assert!(!limiter.take("a", TWO_A_SECOND, at(0)).allowed);
    }

    #[test]
    fn a_batch_larger_than_the_bucket_passes_once_and_is_paid_for() {
        let (limiter, start) = (Limiter::new(10), Instant::now());
        assert!(limiter.take_many("a", TWO_A_SECOND, 13.0, start).allowed);
        let refused = limiter.take("a", TWO_A_SECOND, start);
        assert_eq!((refused.allowed, refused.retry_after.as_millis()), (false, 5500));
        assert!(limiter.take("a", TWO_A_SECOND, start + Duration::from_millis(5500)).allowed);
    }

    #[test]
    fn looking_takes_nothing_and_makes_nothing() {
        let (limiter, now) = (Limiter::new(10), Instant::now());
        assert!(limiter.look("a", TWO_A_SECOND, now).allowed);
        assert_eq!(limiter.len(), 0);
    }

    #[test]
    fn memory_is_bounded_whatever_names_come() {
        let (limiter, now) = (Limiter::new(100), Instant::now());
        for n in 0..10_000 {
            limiter.take(&n.to_string(), TWO_A_SECOND, now);
        }
        assert!(limiter.len() <= 100);
        limiter.clean(Duration::from_secs(60), now + Duration::from_secs(61));
        assert_eq!(limiter.len(), 0);
    }

    #[test]
    fn a_changed_allowance_holds_for_buckets_that_exist() {
        let (limiter, now) = (Limiter::new(10), Instant::now());
        limiter.take("a", Allowance { per_minute: 60.0, burst: 100.0 }, now);
        let verdict = limiter.take("a", TWO_A_SECOND, now);
        assert_eq!(verdict.remaining, 2);
    }
}
