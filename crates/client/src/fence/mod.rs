//! Guards for writes to other systems.
//!
//! A lease is not a lock: an attempt that was presumed dead may still be running when the next one has begun. What keeps it
//! from overwriting its successor is the fence, a number that grows with every grant of the task. Whoever is written to
//! keeps the highest fence it has seen, and refuses a write with a lower one. The comparison must be part of the write:
//! asking first and writing then leaves a gap.
//!
//! The fences of two tasks have nothing to do with each other. What a fence guards is written by one task only: a row, an
//! object or a resource that belongs to it.
//!
//! - [`sql`]: a column `fence` and `WHERE fence <= $n`, or one table of fences for a whole transaction.
//! - [`object`]: conditional puts to an object store.
//! - [`http`]: a header, and what the other side does with it.

pub mod http;
pub mod object;
pub mod sql;

/// The fence of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    task_id: String,
    value: u64,
}

impl Fence {
    pub fn new(task_id: impl Into<String>, value: u64) -> Self {
        Self { task_id: task_id.into(), value }
    }

    /// Whose fence it is.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    pub fn value(&self) -> u64 {
        self.value
    }

    /// For a column of a database. Fences are below 2^53, so all of them fit.
    pub fn as_i64(&self) -> i64 {
        i64::try_from(self.value).unwrap_or(i64::MAX)
    }

    /// Whether a write with this fence may follow one with `highest`. For whoever keeps the highest fence himself, and
    /// holds a lock or runs a transaction around the comparison and the write.
    pub fn check(&self, highest: Option<u64>) -> Result<(), Stale> {
        match highest {
            Some(highest) if highest > self.value => Err(self.stale()),
            _ => Ok(()),
        }
    }

    /// The error of a write that was refused for its fence.
    pub fn stale(&self) -> Stale {
        Stale { task_id: self.task_id.clone(), fence: self.value }
    }
}

/// The write was refused: a later attempt has written before.
///
/// Nothing can be done about it. The attempt that gets this has lost its lease, and what it reports will be refused
/// too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a later attempt of task {task_id} has written: fence {fence} is stale")]
pub struct Stale {
    pub task_id: String,
    pub fence: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_may_write_again_and_an_older_one_may_not() {
        let fence = Fence::new("t", 7);
        assert_eq!(fence.check(None), Ok(()));
        assert_eq!(fence.check(Some(6)), Ok(()));
        assert_eq!(fence.check(Some(7)), Ok(()));
        assert_eq!(fence.check(Some(8)), Err(fence.stale()));
    }
}
