use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// Settings of worker processes, and TLS for worker RPC.
#[derive(Debug, Clone)]
pub struct Worker {
    pub id: Option<String>,
    pub control_plane_url: String,
    pub rpc_tls: RpcTls,
}

/// TLS between control plane and workers. Each side uses its own part.
#[derive(Debug, Clone)]
pub struct RpcTls {
    pub enabled: bool,
    /// Worker: certificate and key.
    pub server: Option<(PathBuf, PathBuf)>,
    /// Worker: roots for the control plane's certificate; set, it is required.
    pub client_ca_file: Option<PathBuf>,
    /// Worker: empty accepts any name under the roots.
    pub allowed_client_names: Vec<String>,
    /// Control plane: roots for workers' certificates.
    pub ca_file: Option<PathBuf>,
    /// Control plane: certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
    pub server_name: Option<String>,
    pub server_names: BTreeMap<String, String>,
    pub bind_worker_id: BindWorkerId,
    pub insecure_skip_verify: bool,
}

/// Whether the certificate of a worker has to name its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindWorkerId {
    Off,
    Warn,
    Require,
}

pub(crate) fn worker(settings: &Settings) -> Result<Worker, ConfigError> {
    let key = "worker.control_plane_url";
    let url = settings.plain(key).unwrap_or_default();
    if !net::is_url(&url) {
        return Err(settings.wrong(key, "must be an address such as https://tenure.example.com, without a password"));
    }
    Ok(Worker { id: settings.plain("worker.id"), control_plane_url: url, rpc_tls: rpc_tls(settings)? })
}

fn rpc_tls(settings: &Settings) -> Result<RpcTls, ConfigError> {
    let bind_worker_id = match settings.choice("worker.rpc_tls.bind_worker_id")? {
        Some("warn") => BindWorkerId::Warn,
        Some("require") => BindWorkerId::Require,
        _ => BindWorkerId::Off,
    };
    let names = settings.map("worker.rpc_tls.server_names");
    Ok(RpcTls {
        enabled: settings.flag("worker.rpc_tls.enabled")?,
        server: settings.pair("worker.rpc_tls.server_cert_file", "worker.rpc_tls.server_key_file")?,
        client_ca_file: settings.path("worker.rpc_tls.client_ca_file")?,
        allowed_client_names: settings.texts("worker.rpc_tls.allowed_client_names"),
        ca_file: settings.path("worker.rpc_tls.ca_file")?,
        client: settings.pair("worker.rpc_tls.client_cert_file", "worker.rpc_tls.client_key_file")?,
        server_name: settings.plain("worker.rpc_tls.server_name"),
        server_names: names.map(|(id, name)| (id.to_owned(), name.to_owned())).collect(),
        bind_worker_id,
        insecure_skip_verify: settings.flag("worker.rpc_tls.insecure_skip_verify")?,
    })
}
