//! The side that calls workers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::SingleCertAndKey;

use crate::error::TlsError;
use crate::identity::Identity;
use crate::provider::provider;
use crate::roots::Roots;
use crate::verify::{BindWorkerId, Trust, Verifier};

/// What TLS towards workers is made of.
#[derive(Debug, Clone, Default)]
pub struct ClientTls {
    /// CAs of workers' certificates. Without it the system's.
    pub ca_file: Option<PathBuf>,
    pub client_cert_file: Option<PathBuf>,
    pub client_key_file: Option<PathBuf>,
    /// The name that workers' certificates have, in place of the host that is dialled.
    pub server_name: Option<String>,
    /// The same for single workers, by worker id. Goes before `server_name`.
    pub server_names: BTreeMap<String, String>,
    /// Accepts any certificate. For throwaway tests.
    pub insecure_skip_verify: bool,
    pub bind_worker_id: BindWorkerId,
}

impl ClientTls {
    /// Reads and checks all files and names.
    pub fn load(self) -> Result<LiveClient, TlsError> {
        for name in self.server_names.values() {
            parse_name("server_names", name)?;
        }
        if let Some(name) = &self.server_name {
            parse_name("server_name", name)?;
        }
        let current = self.read()?;
        if self.insecure_skip_verify {
            tracing::warn!("insecure_skip_verify: certificates of workers are not verified");
        }
        Ok(LiveClient { tls: self, current: RwLock::new(Arc::new(current)) })
    }

    fn read(&self) -> Result<Current, TlsError> {
        let identity = Identity::load_pair(
            self.client_cert_file.as_deref(),
            self.client_key_file.as_deref(),
            ("client_cert_file", "client_key_file"),
        )?;
        let roots = Roots::of(self.ca_file.as_deref());
        // A CA file that is set is read, even if nothing is verified against it: a bad one is a mistake.
        if self.insecure_skip_verify && self.ca_file.is_none() {
            return Ok(Current { trust: Trust::Nobody, identity, ca: Vec::new() });
        }
        let store = roots.load()?;
        // The system's are read once: they are many, and do not change by hand.
        let ca = if self.ca_file.is_some() { roots.certificates()? } else { Vec::new() };
        let trust = if self.insecure_skip_verify { Trust::Nobody } else { Trust::full(store)? };
        Ok(Current { trust, identity, ca })
    }

    fn expected(&self, worker_id: &str) -> Result<Option<ServerName<'static>>, TlsError> {
        match (self.server_names.get(worker_id), &self.server_name) {
            (Some(name), _) => parse_name("server_names", name).map(Some),
            (None, Some(name)) => parse_name("server_name", name).map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn parse_name(setting: &'static str, name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::Name { setting, name: name.to_owned() })
}

#[derive(Debug)]
struct Current {
    trust: Trust,
    identity: Option<Identity>,
    ca: Vec<CertificateDer<'static>>,
}

impl Current {
    fn is_same(&self, other: &Self) -> bool {
        let chain = |current: &Self| current.identity.as_ref().map(|identity| identity.chain().to_vec());
        self.ca == other.ca && chain(self) == chain(other)
    }
}

/// TLS towards workers, with files that are swapped under it.
#[derive(Debug)]
pub struct LiveClient {
    tls: ClientTls,
    current: RwLock<Arc<Current>>,
}

impl LiveClient {
    /// For one new connection to this worker. Dial the host of its URL: a configured name takes its place where the
    /// certificate is verified. The caller sets the protocols (ALPN).
    pub fn for_worker(&self, worker_id: &str) -> Result<ClientConfig, TlsError> {
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner));
        let provider = provider();
        let verifier = Verifier {
            trust: current.trust.clone(),
            expected: self.tls.expected(worker_id)?,
            worker: Some((self.tls.bind_worker_id, worker_id.to_owned())),
            provider: Arc::clone(&provider),
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Setup)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match &current.identity {
            Some(identity) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.key))))
            }
            None => builder.with_no_client_auth(),
        };
        // A resumed session is not verified again. Every connection to a worker is.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Whether a worker is called only if its certificate is for it.
    pub fn requires_binding(&self) -> bool {
        self.tls.bind_worker_id == BindWorkerId::Require
    }

    /// Reads the files again. `true` when something is new from now on; on an error nothing changes.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let read = self.tls.read()?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.is_same(&read) {
            return Ok(false);
        }
        *current = Arc::new(read);
        Ok(true)
    }
}
