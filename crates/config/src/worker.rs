use tenure_tls::{BindWorkerId, RpcTls};

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
    let server = settings.pair("worker.rpc_tls.server_cert_file", "worker.rpc_tls.server_key_file")?;
    let client = settings.pair("worker.rpc_tls.client_cert_file", "worker.rpc_tls.client_key_file")?;
    let ((server_cert_file, server_key_file), (client_cert_file, client_key_file)) = (server.unzip(), client.unzip());
    Ok(RpcTls {
        enabled: settings.flag("worker.rpc_tls.enabled")?,
        server_cert_file,
        server_key_file,
        client_ca_file: settings.path("worker.rpc_tls.client_ca_file")?,
        allowed_client_names: settings.texts("worker.rpc_tls.allowed_client_names"),
        ca_file: settings.path("worker.rpc_tls.ca_file")?,
        client_cert_file,
        client_key_file,
        server_name: settings.plain("worker.rpc_tls.server_name"),
        server_names: names.map(|(id, name)| (id.to_owned(), name.to_owned())).collect(),
        bind_worker_id,
        insecure_skip_verify: settings.flag("worker.rpc_tls.insecure_skip_verify")?,
    })
}
