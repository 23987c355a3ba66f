//! What is verified of a server that this process connects to.

use std::sync::Arc;

use rustls::ClientConfig;

use crate::error::TlsError;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verify::{Trust, Verifier};

/// What is verified of a server that this process connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerTrust {
    /// Nothing. Keeps out those who only listen, not those who answer in the server's place.
    Nobody,
    /// That its certificate is from one of these CAs.
    Chain(Roots),
    /// That, and that the certificate is for the host that was dialled.
    Full(Roots),
}

impl ServerTrust {
    /// TLS that verifies this much. Reads the CAs.
    pub fn client_config(&self) -> Result<ClientConfig, TlsError> {
        let trust = match self {
            Self::Nobody => Trust::Nobody,
            Self::Chain(roots) => Trust::Chain(roots.load()?),
            Self::Full(roots) => Trust::full(roots.load()?)?,
        };
        let provider = provider();
        let verifier = Verifier { trust, expected: None, worker: None, provider: Arc::clone(&provider) };
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}
