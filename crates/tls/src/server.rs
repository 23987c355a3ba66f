//! The side that listens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::CertificateDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::identity::Identity;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verify::Clients;

/// Whether clients show a certificate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClientAuth {
    #[default]
    Off,
    /// One that is shown must be good; none is fine.
    Optional,
    Required,
}

/// What a listener's TLS is made of.
#[derive(Debug, Clone)]
pub struct ServerTls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// The CA of client certificates.
    pub client_ca_file: Option<PathBuf>,
    pub client_auth: ClientAuth,
    /// Clients that are let in, by host name or URI of their certificate. Empty: all under the CA.
    pub allowed_client_names: Vec<String>,
    /// The protocols above TLS, best first.
    pub alpn: Vec<Vec<u8>>,
}

impl ServerTls {
    /// No client certificates; HTTP/2 and HTTP/1.1.
    pub fn new(cert_file: impl Into<PathBuf>, key_file: impl Into<PathBuf>) -> Self {
        Self {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
            client_ca_file: None,
            client_auth: ClientAuth::Off,
            allowed_client_names: Vec::new(),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        }
    }

    /// Reads and checks all files.
    pub fn load(self) -> Result<LiveServer, TlsError> {
        let files = self.read()?;
        let tickets = new_tickets()?;
        let config = self.config(&files, &tickets)?;
        Ok(LiveServer { current: RwLock::new(Current { tls: self, config, files, tickets }) })
    }

    fn read(&self) -> Result<Files, TlsError> {
        let identity = Identity::load(&self.cert_file, &self.key_file)?;
        let client_roots = match (self.client_auth, &self.client_ca_file) {
            (ClientAuth::Off, None) => None,
            (_, Some(file)) if self.client_auth != ClientAuth::Off => Some(client_roots(file)?),
            (ClientAuth::Off, Some(_)) => {
                return Err(TlsError::Unused {
                    setting: "client_ca_file",
                    why: "client_auth is off; set it to optional or required",
                });
            }
            (_, _) => {
                return Err(TlsError::Missing {
                    setting: "client_ca_file",
                    why: "client_auth needs the CA of the clients",
                });
            }
        };
        Ok(Files { identity, client_roots })
    }

    fn config(&self, files: &Files, tickets: &Arc<dyn ProducesTickets>) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?;
        let builder = match &files.client_roots {
            Some(certs) => builder.with_client_cert_verifier(self.client_verifier(certs)?),
            None => builder.with_no_client_auth(),
        };
        let resolver = SingleCertAndKey::from(Arc::clone(&files.identity.key));
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols.clone_from(&self.alpn);
        config.ticketer = Arc::clone(tickets);
        // Sessions live in tickets alone, which outlast a swap.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    fn client_verifier(&self, certs: &[CertificateDer<'static>]) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let mut roots = rustls::RootCertStore::empty();
        for cert in certs {
            roots.add(cert.clone()).map_err(TlsError::Setup)?;
        }
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        let builder = if self.client_auth == ClientAuth::Optional { builder.allow_unauthenticated() } else { builder };
        let inner = builder.build().map_err(|error| TlsError::Setup(rustls::Error::General(error.to_string())))?;
        Ok(Arc::new(Clients { inner, names: self.allowed_client_names.clone() }))
    }
}

fn client_roots(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let roots = Roots::File(file.to_owned());
    // Refuses what no verifier would take.
    roots.load()?;
    roots.certificates()
}

fn new_tickets() -> Result<Arc<dyn ProducesTickets>, TlsError> {
    Ticketer::new().map_err(TlsError::Setup)
}

#[derive(Debug)]
struct Files {
    identity: Identity,
    client_roots: Option<Vec<CertificateDer<'static>>>,
}

#[derive(Debug)]
struct Current {
    tls: ServerTls,
    config: Arc<ServerConfig>,
    files: Files,
    tickets: Arc<dyn ProducesTickets>,
}

/// TLS of a listener that runs. Certificates are swapped under it; connections that exist are not touched.
#[derive(Debug)]
pub struct LiveServer {
    current: RwLock<Current>,
}

impl LiveServer {
    /// For the next connection. Ask anew for each: a clone of a pointer.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// Reads the files again. `true` when something is new from now on. On an error nothing changes: the old
    /// certificate goes on serving.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let tls = self.current.read().unwrap_or_else(PoisonError::into_inner).tls.clone();
        self.reload_from(tls)
    }

    /// The same from other files, or under other rules for clients.
    pub fn reload_from(&self, tls: ServerTls) -> Result<bool, TlsError> {
        let files = tls.read()?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = &current.tls;
        let same_rules = old.client_auth == tls.client_auth && old.allowed_client_names == tls.allowed_client_names;
        let same_clients = same_rules && files.client_roots == current.files.client_roots;
        // The key belongs to the certificate, so a new key shows as a new certificate.
        if same_clients && files.identity.chain() == current.files.identity.chain() {
            current.tls = tls;
            return Ok(false);
        }
        // A resumed session is not verified again, so a client of the old CA must not resume one.
        let tickets = if same_clients { Arc::clone(&current.tickets) } else { new_tickets()? };
        let config = tls.config(&files, &tickets)?;
        *current = Current { tls, config, files, tickets };
        Ok(true)
    }
}
