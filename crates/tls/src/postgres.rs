//! TLS for connections to Postgres.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::TlsError;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verify::{Trust, Verifier};

/// What is verified of a Postgres server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PostgresTrust {
    /// Nothing: keeps out those who only listen, not those who answer in the server's place.
    Nobody,
    /// That its certificate is from one of these CAs.
    Chain(Roots),
    /// That, and that it is for the host that was dialled.
    Full(Roots),
}

/// What tokio-postgres makes TLS connections with.
pub fn postgres(trust: &PostgresTrust) -> Result<MakeRustlsConnect, TlsError> {
    let trust = match trust {
        PostgresTrust::Nobody => Trust::Nobody,
        PostgresTrust::Chain(roots) => Trust::Chain(roots.load()?),
        PostgresTrust::Full(roots) => Trust::full(roots.load()?)?,
    };
    let provider = provider();
    let verifier = Verifier { trust, expected: None, worker: None, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}
