//! The cryptography that every connection uses.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// Named everywhere: a default of the process could be missing, or be set by a dependency.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
