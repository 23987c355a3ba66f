//! Whom this side trusts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::error::TlsError;
use crate::identity::certificates;

/// CAs whose certificates are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Roots {
    /// Those of the operating system.
    #[default]
    System,
    /// Those of a PEM file, and no others.
    File(PathBuf),
}

impl Roots {
    /// A file where one is set, else the system's.
    pub fn of(file: Option<&Path>) -> Self {
        file.map_or(Self::System, |file| Self::File(file.to_owned()))
    }

    pub fn load(&self) -> Result<Arc<RootCertStore>, TlsError> {
        let found = self.certificates()?;
        let mut store = RootCertStore::empty();
        let (added, ignored) = store.add_parsable_certificates(found);
        match self {
            // Bundles of systems have old certificates that no verifier takes.
            Self::System if added == 0 => Err(TlsError::NoSystemRoots),
            Self::File(file) if added == 0 || ignored > 0 => Err(TlsError::NoRoots { file: file.clone() }),
            _ => Ok(Arc::new(store)),
        }
    }

    pub(crate) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        match self {
            Self::System => Ok(rustls_native_certs::load_native_certs().certs),
            Self::File(file) => certificates(file),
        }
    }
}
