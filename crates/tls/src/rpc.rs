//! The settings `worker.rpc_tls`, for both sides of worker RPC.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::client::ClientTls;
use crate::error::TlsError;
use crate::identity::Identity;
use crate::roots::Roots;
use crate::server::{ClientAuth, ServerTls};
use crate::verify::BindWorkerId;

/// Plain values, as they were set. [`check`](Self::check) says at start what is wrong with them.
#[derive(Debug, Clone, Default)]
pub struct RpcTls {
    pub enabled: bool,
    /// Worker: its own certificate.
    pub server_cert_file: Option<PathBuf>,
    pub server_key_file: Option<PathBuf>,
    /// Worker: set means that control planes must show a certificate of this CA.
    pub client_ca_file: Option<PathBuf>,
    /// Worker: control planes that are let in. Empty: all under the CA.
    pub allowed_client_names: Vec<String>,
    /// Control plane: CAs of workers' certificates.
    pub ca_file: Option<PathBuf>,
    /// Control plane: its own certificate.
    pub client_cert_file: Option<PathBuf>,
    pub client_key_file: Option<PathBuf>,
    /// Control plane: the name in workers' certificates.
    pub server_name: Option<String>,
    /// Control plane: the same by worker id.
    pub server_names: BTreeMap<String, String>,
    pub bind_worker_id: BindWorkerId,
    pub insecure_skip_verify: bool,
}

impl RpcTls {
    /// Reads every file that is set. `listening`: whether this process serves worker RPC. Without `enabled` nothing is
    /// looked at.
    pub fn check(&self, listening: bool) -> Result<(), TlsError> {
        if !self.enabled {
            return Ok(());
        }
        if !self.allowed_client_names.is_empty() && self.client_ca_file.is_none() {
            return Err(TlsError::Missing {
                setting: "worker.rpc_tls.client_ca_file",
                why: "allowed_client_names needs the CA that vouches for the names",
            });
        }
        let server = Identity::load_pair(
            self.server_cert_file.as_deref(),
            self.server_key_file.as_deref(),
            ("worker.rpc_tls.server_cert_file", "worker.rpc_tls.server_key_file"),
        )?;
        if listening && server.is_none() {
            return Err(no_server_certificate());
        }
        if let Some(file) = &self.client_ca_file {
            Roots::File(file.clone()).load()?;
        }
        Identity::load_pair(
            self.client_cert_file.as_deref(),
            self.client_key_file.as_deref(),
            ("worker.rpc_tls.client_cert_file", "worker.rpc_tls.client_key_file"),
        )?;
        if listening && self.ca_file.is_none() {
            // A worker calls nobody: it needs no CAs of the system.
            return Ok(());
        }
        self.client().load().map(drop)
    }

    /// The worker's side.
    pub fn server(&self) -> Result<ServerTls, TlsError> {
        let (Some(cert), Some(key)) = (&self.server_cert_file, &self.server_key_file) else {
            return Err(no_server_certificate());
        };
        let mut server = ServerTls::new(cert, key);
        server.client_auth = if self.client_ca_file.is_some() { ClientAuth::Required } else { ClientAuth::Off };
        server.client_ca_file.clone_from(&self.client_ca_file);
        server.allowed_client_names.clone_from(&self.allowed_client_names);
        // Each call has a connection to itself, and WebSockets need HTTP/1.1.
        server.alpn = vec![b"http/1.1".to_vec()];
        Ok(server)
    }

    /// The control plane's side.
    pub fn client(&self) -> ClientTls {
        ClientTls {
            ca_file: self.ca_file.clone(),
            client_cert_file: self.client_cert_file.clone(),
            client_key_file: self.client_key_file.clone(),
            server_name: self.server_name.clone(),
            server_names: self.server_names.clone(),
            insecure_skip_verify: self.insecure_skip_verify,
            bind_worker_id: self.bind_worker_id,
        }
    }
}

fn no_server_certificate() -> TlsError {
    TlsError::Missing {
        setting: "worker.rpc_tls.server_cert_file",
        why: "worker RPC listens with TLS and needs a certificate and its key (server_key_file)",
    }
}
