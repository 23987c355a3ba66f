//! What can be wrong with certificates, and what to do about it.

use std::path::PathBuf;

use rustls::{CertificateError, Error};

/// What is wrong with a certificate without extensions, and how to make one that has some. `openssl x509 -req` makes version 1
/// unless it is told about extensions.
pub(crate) const VERSION_1: &str = "X.509 version 1, which cannot say what it is for: make a version 3 certificate, for \
     example with `openssl x509 -req -extfile FILE` and the line `extendedKeyUsage=clientAuth,serverAuth` in FILE, or with \
     `tenure dev-certs`";

/// Names the file and what to do. Never quotes what is in a file.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {what} {}: check that the file exists and that this user may read it", file.display())]
    Read {
        what: &'static str,
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} contains no certificate: expected PEM, with a line -----BEGIN CERTIFICATE-----", file.display())]
    NoCertificate { file: PathBuf },
    #[error("{} is broken PEM, or a certificate in it is: write the file again", file.display())]
    BadCertificate { file: PathBuf },
    #[error("{} contains no private key: expected PEM (PKCS#8, PKCS#1 or SEC1) that is not encrypted", file.display())]
    NoKey { file: PathBuf },
    #[error(
        "the private key in {} cannot be used: write the file again, with an RSA, ECDSA or Ed25519 key",
        file.display()
    )]
    BadKey { file: PathBuf },
    #[error(
        "the key in {} does not belong to the certificate in {}: use a matching pair",
        key.display(),
        cert.display()
    )]
    Mismatch { cert: PathBuf, key: PathBuf },
    #[error("the certificate in {} expired on {on}: replace it and its key", file.display())]
    Expired { file: PathBuf, on: String },
    #[error("the certificate in {} is {VERSION_1}", file.display())]
    Version1 { file: PathBuf },
    #[error("{given} is set without {missing}: set both or neither")]
    HalfPair { given: &'static str, missing: &'static str },
    #[error("{setting} is missing: {why}")]
    Missing { setting: &'static str, why: &'static str },
    #[error("{setting} has no effect: {why}")]
    Unused { setting: &'static str, why: &'static str },
    #[error("'{name}' is neither a host name nor an address: correct {setting}")]
    Name { setting: &'static str, name: String },
    #[error("this system has no CA certificates: install them (ca-certificates), or name a CA file")]
    NoSystemRoots,
    #[error("{} contains no usable CA certificate", file.display())]
    NoRoots { file: PathBuf },
    #[error("TLS cannot be set up")]
    Setup(#[source] Error),
    #[error("{} exists already: give another folder, or remove what is in it", file.display())]
    Exists { file: PathBuf },
    #[error("cannot write {}", file.display())]
    Write {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("'{id}' cannot be in a certificate: use letters, digits, '-', '_' and '.', and not localhost")]
    WorkerId { id: String },
    #[error("cannot make a certificate: {why}")]
    Make { why: String },
}

/// A failed handshake in words: why the other side was refused, and what to look at.
pub fn explain(error: &Error) -> String {
    let Error::InvalidCertificate(why) = error else {
        return error.to_string();
    };
    match why {
        // A CA that was made again has the same name and another key: then the signature is what does not fit.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "the server's certificate is not signed by a trusted CA: check the CA file".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the server's certificate is for another name: use a name that it has, or issue one for this name"
                .to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the server's certificate has expired: replace it, or check the clock".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet: check the clock".to_owned()
        }
        CertificateError::Other(other) => other.0.to_string(),
        other => format!("the server's certificate is refused: {other}"),
    }
}
