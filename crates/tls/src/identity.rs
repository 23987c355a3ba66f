//! A certificate with its key.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::parse_x509_certificate;
use x509_parser::x509::X509Version;

use crate::error::TlsError;
use crate::provider::provider;

/// Who this side is: a certificate, what leads to its CA, and the key. Checked to belong together.
#[derive(Debug, Clone)]
pub struct Identity {
    pub(crate) key: Arc<CertifiedKey>,
}

impl Identity {
    /// Reads both files. Fails with the name of the file that is wrong.
    pub fn load(cert_file: &Path, key_file: &Path) -> Result<Self, TlsError> {
        let chain = certificates(cert_file)?;
        refuse_expired(&chain[0], cert_file)?;
        if is_version_1(&chain[0]) {
            return Err(TlsError::Version1 { file: cert_file.to_owned() });
        }
        let key = private_key(key_file)?;
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                TlsError::Mismatch { cert: cert_file.to_owned(), key: key_file.to_owned() }
            }
            Error::InvalidCertificate(_) => TlsError::BadCertificate { file: cert_file.to_owned() },
            _ => TlsError::BadKey { file: key_file.to_owned() },
        })?;
        Ok(Self { key: Arc::new(key) })
    }

    /// Both files, or neither. `settings` are their names, for the error about half a pair.
    pub fn load_pair(
        cert_file: Option<&Path>,
        key_file: Option<&Path>,
        settings: (&'static str, &'static str),
    ) -> Result<Option<Self>, TlsError> {
        match (cert_file, key_file) {
            (Some(cert), Some(key)) => Self::load(cert, key).map(Some),
            (None, None) => Ok(None),
            (Some(_), None) => Err(TlsError::HalfPair { given: settings.0, missing: settings.1 }),
            (None, Some(_)) => Err(TlsError::HalfPair { given: settings.1, missing: settings.0 }),
        }
    }

    /// The certificate, and after it what leads to the CA.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

/// All certificates of a PEM file, at least one.
pub(crate) fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read("the certificate", file)?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    // An error of the PEM parser can quote the file, which may be a key by mistake.
    let found = found.map_err(|_| TlsError::BadCertificate { file: file.to_owned() })?;
    if found.is_empty() {
        return Err(TlsError::NoCertificate { file: file.to_owned() });
    }
    if found.iter().any(|der| parse_x509_certificate(der).is_err()) {
        return Err(TlsError::BadCertificate { file: file.to_owned() });
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read("the private key", file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::NoKey { file: file.to_owned() },
        _ => TlsError::BadKey { file: file.to_owned() },
    })
}

fn read(what: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|source| TlsError::Read { what, file: file.to_owned(), source })
}

/// No verifier takes such a certificate: it has neither names nor a purpose.
pub(crate) fn is_version_1(der: &CertificateDer<'_>) -> bool {
    parse_x509_certificate(der).is_ok_and(|(_, cert)| cert.version() == X509Version::V1)
}

fn refuse_expired(der: &CertificateDer<'_>, file: &Path) -> Result<(), TlsError> {
    let (_, cert) = parse_x509_certificate(der).map_err(|_| TlsError::BadCertificate { file: file.to_owned() })?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let validity = cert.validity();
    if validity.not_after.timestamp() < now.cast_signed() {
        return Err(TlsError::Expired { file: file.to_owned(), on: validity.not_after.to_string() });
    }
    if validity.not_before.timestamp() > now.cast_signed() {
        // Not refused: a certificate that was issued a moment ago by a machine whose clock is ahead is like this.
        tracing::warn!(file.path = %file.display(), valid_from = %validity.not_before, "a certificate is not valid yet");
    }
    Ok(())
}
