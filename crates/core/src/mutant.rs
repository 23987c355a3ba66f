//! Broken promises, each behind a name. Only a build with the feature `mutants` has them: `scripts/mutants` runs chaos against
//! each, and chaos must notice.

/// Whether the promise of this name is broken. Always `false`, at no cost, without the feature `mutants`.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is($name)
    };
    ($name:literal, every $times:literal) => {
        $crate::mutant::every($name, $times)
    };
}

/// Whether the promise of this name is broken. Always `false`, at no cost, without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($name:literal $(, every $times:literal)?) => {
        false
    };
}

#[cfg(feature = "mutants")]
mod chosen {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, OnceLock, PoisonError};

    static CHOSEN: OnceLock<String> = OnceLock::new();

    /// Breaks the promise of this name for as long as the process lives.
    pub fn choose(name: String) {
        let _ = CHOSEN.set(name);
    }

    pub fn is(name: &str) -> bool {
        CHOSEN.get().is_some_and(|chosen| chosen == name)
    }

    /// Whether this is one of every `times` calls for that name.
    pub fn every(name: &'static str, times: u32) -> bool {
        static CALLS: Mutex<BTreeMap<&'static str, u32>> = Mutex::new(BTreeMap::new());
        if !is(name) {
            return false;
        }
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(name).or_default();
        *count += 1;
        count.is_multiple_of(times)
    }
}

#[cfg(feature = "mutants")]
pub use chosen::{choose, every, is};
