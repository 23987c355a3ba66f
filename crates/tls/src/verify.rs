//! Who is accepted at the other end of a connection. Refusals happen in the handshake, before anything is said.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};

use crate::error::{TlsError, VERSION_1};
use crate::identity::is_version_1;
use crate::names::{PeerNames, check_worker_binding};
use crate::provider::provider;

/// Whether a worker's certificate must be for the worker that is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BindWorkerId {
    #[default]
    Off,
    /// A line in the log, and the call goes on.
    Warn,
    /// The handshake fails: no byte of the request is sent.
    Require,
}

/// What of a server's certificate is verified.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// The chain and the name.
    Full(Arc<WebPkiServerVerifier>),
    /// The chain only.
    Chain(Arc<RootCertStore>),
    /// Nothing: the connection is encrypted, and anyone may be at its end.
    Nobody,
}

impl Trust {
    pub(crate) fn full(roots: Arc<RootCertStore>) -> Result<Self, TlsError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
        verifier.map(Self::Full).map_err(|error| TlsError::Setup(Error::General(error.to_string())))
    }
}

/// The client's side: is this the server that was meant?
#[derive(Debug)]
pub(crate) struct Verifier {
    pub trust: Trust,
    /// The name that the certificate must have, in place of the one that was dialled.
    pub expected: Option<ServerName<'static>>,
    /// The worker that was meant.
    pub worker: Option<(BindWorkerId, String)>,
    pub provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn check_worker(&self, cert: &CertificateDer<'_>) -> Result<(), Error> {
        let Some((bind, worker_id)) = &self.worker else {
            return Ok(());
        };
        if *bind == BindWorkerId::Off || check_worker_binding(cert, worker_id) {
            return Ok(());
        }
        if *bind == BindWorkerId::Warn {
            tracing::warn!(worker.id = %worker_id, "the worker's certificate is not for this worker");
            return Ok(());
        }
        Err(refused(NotThisWorker { worker_id: worker_id.clone() }))
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let name = self.expected.as_ref().unwrap_or(server_name);
        match &self.trust {
            Trust::Full(verifier) => {
                verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)?;
            }
            Trust::Chain(roots) => {
                let cert = ParsedCertificate::try_from(end_entity)?;
                let algorithms = self.provider.signature_verification_algorithms.all;
                verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms)?;
            }
            Trust::Nobody => {}
        }
        self.check_worker(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The server's side: clients under the CA, and of those only the ones that are listed, if there is a list.
#[derive(Debug)]
pub(crate) struct Clients {
    pub inner: Arc<dyn ClientCertVerifier>,
    pub names: Vec<String>,
}

impl ClientCertVerifier for Clients {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // It would be refused anyway, without saying why.
        if is_version_1(end_entity) {
            return Err(refused(OldVersion));
        }
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let is_listed = self.names.is_empty() || PeerNames::of(end_entity).is_one_of(&self.names);
        if is_listed { Ok(verified) } else { Err(refused(NotAllowed)) }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[derive(Debug)]
struct OldVersion;

impl fmt::Display for OldVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the certificate of the client is {VERSION_1}")
    }
}

impl std::error::Error for OldVersion {}

#[derive(Debug)]
struct NotThisWorker {
    worker_id: String,
}

impl fmt::Display for NotThisWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the certificate is not for worker '{0}': it needs the URI tenure://worker/{0} or a DNS name that starts with {0}",
            self.worker_id
        )
    }
}

impl std::error::Error for NotThisWorker {}

#[derive(Debug)]
struct NotAllowed;

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the client's certificate has no name that is in allowed_client_names")
    }
}

impl std::error::Error for NotAllowed {}

fn refused(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why))))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::pem::PemObject;
    use rustls::server::WebPkiClientVerifier;

    use super::*;

    #[test]
    fn a_client_with_a_version_1_certificate_is_told_how_to_make_another() {
        let cert = CertificateDer::from_pem_slice(include_bytes!("../tests/version-1.crt")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(cert.clone()).unwrap();
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap();
        // Refused without this check, too, with no word about how to go on.
        assert!(inner.verify_client_cert(&cert, &[], UnixTime::now()).is_err());
        let clients = Clients { inner, names: Vec::new() };
        let error = clients.verify_client_cert(&cert, &[], UnixTime::now()).unwrap_err();
        let text = crate::error::explain(&error);
        for part in ["the certificate of the client is X.509 version 1", "version 3", "openssl x509 -req -extfile"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
