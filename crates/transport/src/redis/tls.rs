//! TLS to Redis, always with a check of the certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{refused, unreachable};
use crate::TransportError;

/// Reads a file of CAs, or asks the system for its own.
pub(super) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, TransportError> {
    let roots = match ca_file {
        Some(file) => roots_of(file)?,
        None => {
            let mut roots = RootCertStore::empty();
            // Bundles of systems have old certificates that no verifier takes.
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(refused("this system has no CAs to trust, and no file of CAs is set"));
            }
            roots
        }
    };
    // Named here: a default of the process could be missing, or be set by a dependency.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| refused("no version of TLS can be used"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots_of(file: &Path) -> Result<RootCertStore, TransportError> {
    let bad = |what: &str| refused(format!("the CA file {} {what}", file.display()));
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|_| bad("cannot be read as PEM"))?;
    let mut roots = RootCertStore::empty();
    let (added, ignored) = roots.add_parsable_certificates(certificates);
    if added == 0 || ignored > 0 {
        return Err(bad("has no certificate, or one that cannot be used"));
    }
    Ok(roots)
}

pub(super) async fn connect(
    connector: &TlsConnector,
    host: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, TransportError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| refused("its host is not a valid name for TLS"))?;
    connector.connect(name, stream).await.map_err(|error| of(&error))
}

fn of(error: &io::Error) -> TransportError {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = tls else {
        return unreachable(if tls.is_some() { "it speaks no TLS that fits" } else { "the connection was lost" });
    };
    refused(match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of a CA that is not trusted"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name"
        }
        _ => "its certificate is not accepted",
    })
}
