//! Memory for bodies and answers, shared by all calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const UNIT_BYTES: usize = 1024;

/// Bytes that may be in memory at once.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    units: Arc<Semaphore>,
    total: u32,
}

/// A part of the budget, returned when it is dropped.
#[derive(Debug)]
pub(super) struct Reserved(OwnedSemaphorePermit);

impl Budget {
    pub(super) fn new(bytes: usize) -> Self {
        let total = units(bytes);
        Self { units: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// Waits for room. None if there was none in time.
    pub(super) async fn reserve(&self, bytes: usize, wait: Duration) -> Option<Reserved> {
        let wanted = units(bytes).min(self.total);
        let reserving = Arc::clone(&self.units).acquire_many_owned(wanted);
        tokio::time::timeout(wait, reserving).await.ok()?.ok().map(Reserved)
    }

    /// Never waits, so that calls that hold a part of the budget cannot block each other.
    pub(super) fn try_reserve(&self, bytes: usize) -> Option<Reserved> {
        Arc::clone(&self.units).try_acquire_many_owned(units(bytes).min(self.total)).ok().map(Reserved)
    }
}

impl Reserved {
    pub(super) fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    /// Returns all but this many bytes.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.0.num_permits().saturating_sub(units(bytes) as usize);
        drop(self.0.split(surplus));
    }

    pub(super) fn merge(&mut self, other: Self) {
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
        assert!(budget.try_reserve(3 << 20).is_none());
        first.shrink_to(1 << 20);
        let second = budget.try_reserve(9 << 20).expect("room again");
        assert!(budget.reserve(1, Duration::from_millis(1)).await.is_none());
        first.merge(second);
        drop(first);
        assert!(budget.try_reserve(usize::MAX).is_some(), "more than everything is everything");
    }
}
