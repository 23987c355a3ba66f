use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

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
    holds: AtomicBool,
    hold: Mutex<Option<(&'static str, Hold)>>,
}

/// Stops a step of a store after it was carried out, until it is released: for tests of what others do meanwhile. The thread
/// of the step waits.
#[derive(Debug, Clone, Default)]
pub struct Hold(Arc<(Mutex<HoldState>, Condvar)>);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum HoldState {
    #[default]
    Armed,
    Reached,
    Released,
}

impl Hold {
    pub fn is_reached(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) == HoldState::Reached
    }

    pub fn release(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = HoldState::Released;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == HoldState::Armed {
            *state = HoldState::Reached;
        }
        let waits = |state: &mut HoldState| *state != HoldState::Released;
        drop(self.0.1.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
    }
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

    /// Stops after the next step of this name.
    pub fn hold_after(&self, operation: &'static str) -> Hold {
        let hold = Hold::default();
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some((operation, hold.clone()));
        self.holds.store(true, Ordering::SeqCst);
        hold
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
        self.wait_after(operation);
        self.step(operation, true)
    }

    fn wait_after(&self, operation: &'static str) {
        if !self.holds.load(Ordering::Relaxed) {
            return;
        }
        let mut chosen = self.hold.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, hold)) = chosen.take_if(|(name, _)| *name == operation) else { return };
        drop(chosen);
        self.holds.store(false, Ordering::SeqCst);
        // Other tasks of the thread go on elsewhere.
        tokio::task::block_in_place(|| hold.wait());
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
