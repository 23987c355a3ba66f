//! Memory for large bodies and answers, shared by all calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const UNIT_BYTES: usize = 1024;

/// Bytes that may be in memory at once.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    units: Arc<Semaphore>,
    total: u32,
}

/// A part of the budget, returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(OwnedSemaphorePermit);

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        let total = units(bytes);
        Self { units: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits for room. None if there was none in time.
    pub(crate) async fn reserve(&self, bytes: usize, wait: Duration) -> Option<Reserved> {
        let wanted = units(bytes).min(self.total);
        let reserving = Arc::clone(&self.units).acquire_many_owned(wanted);
        tokio::time::timeout(wait, reserving).await.ok()?.ok().map(Reserved)
    }
}

impl Reserved {
    pub(crate) fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_reserved_is_missing_until_it_is_returned() {
        let budget = Budget::new(10 << 20);
        let mut first = budget.reserve(8 << 20, Duration::ZERO).await.expect("room");
        assert!(budget.reserve(3 << 20, Duration::ZERO).await.is_none());
        let second = budget.reserve(2 << 20, Duration::ZERO).await.expect("the rest");
        assert!(budget.reserve(1, Duration::from_millis(1)).await.is_none());
        first.merge(second);
        assert_eq!(first.bytes(), 10 << 20);
        drop(first);
        assert!(budget.reserve(usize::MAX, Duration::ZERO).await.is_some(), "more than everything is everything");
    }
}
