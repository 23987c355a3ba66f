use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// What goes wrong at the chosen step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The step fails.
    Error,
    /// The step panics.
    Panic,
    /// The step is done, and then its answer is lost.
    LostAnswer,
    /// Another transaction is in the way of the step.
    Contention,
}

/// Makes the n-th step of a store fail, for tests that try every step. Off, it costs one read of a number.
#[derive(Debug, Default)]
pub struct Faults {
    /// Steps left before the fault; 0 is off.
    left: AtomicU64,
    kind: AtomicU8,
    /// Only these steps count; all, if there is no name.
    only: Mutex<Option<&'static str>>,
}

impl Faults {
    /// The `n`-th step from now, counted from 1, fails once.
    pub fn fail_at(&self, n: u64, fault: Fault) {
        self.arm(None, n, fault);
    }

    /// The next step of this name fails once, whatever else the store does meanwhile.
    pub fn fail_in(&self, operation: &'static str, fault: Fault) {
        self.arm(Some(operation), 1, fault);
    }

    fn arm(&self, only: Option<&'static str>, n: u64, fault: Fault) {
        *self.only.lock().unwrap_or_else(PoisonError::into_inner) = only;
        self.kind.store(fault as u8, Ordering::SeqCst);
        self.left.store(n, Ordering::SeqCst);
    }

    /// Turns faults off. Gives whether the chosen step was never reached.
    pub fn clear(&self) -> bool {
        self.left.swap(0, Ordering::SeqCst) != 0
    }

    /// Stands before a statement.
    pub(crate) fn before(&self, operation: &'static str) -> Result<(), StoreError> {
        self.step(operation, false)
    }

    /// Stands behind a statement that was carried out.
    pub(crate) fn after(&self, operation: &'static str) -> Result<(), StoreError> {
        self.step(operation, true)
    }

    fn step(&self, operation: &'static str, done: bool) -> Result<(), StoreError> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let only = *self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if only.is_some_and(|only| only != operation) {
            return Ok(());
        }
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if before != Ok(1) {
            return Ok(());
        }
        let source = format!("injected fault {} '{operation}'", if done { "after" } else { "before" }).into();
        match self.kind.load(Ordering::SeqCst) {
            kind if kind == Fault::Panic as u8 => panic!("injected panic at '{operation}'"),
            kind if kind == Fault::Contention as u8 => Err(StoreError::Contention),
            // What was committed is not undone by an error: whoever asked cannot know.
            _ if done && operation == "commit" => Err(StoreError::CommitUnknown { source }),
            _ => Err(StoreError::Unavailable { operation, source }),
        }
    }
}
