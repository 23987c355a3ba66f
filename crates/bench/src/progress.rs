//! What a person sees while a measurement runs.

use std::sync::Arc;

/// Whoever watches a measurement.
pub type Watch = Arc<dyn Progress>;

/// Told how far a measurement is. Steps follow each other; there is one at a time.
pub trait Progress: Send + Sync {
    /// A new step begins. `total` is how many units it has.
    fn begin(&self, what: &str, total: u64);
    /// So many units more are done.
    fn advance(&self, by: u64);
    /// Something worth a line of its own.
    fn note(&self, text: &str);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _total: u64) {}
    fn advance(&self, _by: u64) {}
    fn note(&self, _text: &str) {}
}
