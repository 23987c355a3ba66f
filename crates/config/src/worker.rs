use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_tls::{BindWorkerId, RpcTls};

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// Settings of worker processes, and TLS for worker RPC.
#[derive(Debug, Clone)]
pub struct Worker {
    pub id: Option<String>,
    pub control_plane_url: String,
    /// Host and port, for worker RPC.
    pub listen_addr: Option<String>,
    /// Host and port, for metrics.
    pub metrics_addr: Option<String>,
    pub advertise_url: Option<String>,
    pub preview_domain: Option<String>,
    pub heartbeat_interval: Duration,
    pub shutdown_timeout: Duration,
    pub data_dir: PathBuf,
    pub spawn_timeout: Duration,
    pub lease_grace: Duration,
    pub capacity: WorkerCapacity,
    /// Whether the control plane runs a worker inside its process.
    pub local: bool,
    pub rpc_tls: RpcTls,
    pub sandbox: TaskSandbox,
}

/// Sandboxes in which commands of operators run.
#[derive(Debug, Clone)]
pub struct TaskSandbox {
    pub image: Option<String>,
    pub limits: String,
    /// `namespace`, `process` or `docker`.
    pub provider: &'static str,
    pub warm: usize,
}

/// What a worker offers. 0 is without limit for sandboxes, and what the machine has for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerCapacity {
    pub max_sandboxes: u64,
    pub memory_mb: u64,
    pub vcpus: u64,
}

pub(crate) fn worker(settings: &Settings, data: &Path) -> Result<Worker, ConfigError> {
    let key = "worker.control_plane_url";
    let url = settings.plain(key).unwrap_or_default();
    if !net::is_url(&url) {
        return Err(settings.wrong(key, "must be an address such as https://tenure.example.com, without a password"));
    }
    let heartbeat_interval = settings.duration("worker.heartbeat_interval")?;
    if heartbeat_interval.is_zero() {
        return Err(settings.wrong("worker.heartbeat_interval", "must be longer than 0"));
    }
    Ok(Worker {
        id: settings.plain("worker.id"),
        control_plane_url: url,
        listen_addr: host_and_port(settings, "worker.listen_addr", "127.0.0.1:7430")?,
        metrics_addr: host_and_port(settings, "worker.metrics_addr", "127.0.0.1:7431")?,
        advertise_url: advertise_url(settings)?,
        preview_domain: settings.plain("worker.preview_domain"),
        heartbeat_interval,
        shutdown_timeout: settings.duration("worker.shutdown_timeout")?,
        data_dir: settings.folder("worker.data_dir").unwrap_or_else(|| data.join("worker")),
        spawn_timeout: settings.duration("worker.spawn_timeout")?,
        lease_grace: settings.duration("worker.lease_grace")?,
        capacity: WorkerCapacity {
            max_sandboxes: settings.integer("worker.capacity.max_sandboxes")?,
            memory_mb: settings.integer("worker.capacity.memory_mb")?,
            vcpus: settings.integer("worker.capacity.vcpus")?,
        },
        local: settings.flag("worker.local")?,
        rpc_tls: rpc_tls(settings)?,
        sandbox: sandbox(settings)?,
    })
}

pub(crate) fn host_and_port(settings: &Settings, key: &str, example: &str) -> Result<Option<String>, ConfigError> {
    let Some(text) = settings.plain(key) else { return Ok(None) };
    let has_port = text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if !net::is_authority(&text) || !has_port {
        return Err(settings.unfit(key, &format!("an address and a port such as {example}"), &text));
    }
    Ok(Some(text))
}

/// Others cannot connect to an address that means all of this machine's.
fn advertise_url(settings: &Settings) -> Result<Option<String>, ConfigError> {
    let key = "worker.advertise_url";
    let Some(url) = settings.plain(key) else { return Ok(None) };
    if !net::is_url(&url) {
        return Err(
            settings.wrong(key, "must be an address such as https://worker-a.internal:7430, without a password")
        );
    }
    let authority =
        url.split_once("://").map_or("", |(_, rest)| rest).split(['/', '?', '#']).next().unwrap_or_default();
    if net::is_unspecified(net::host_of(authority)) {
        return Err(settings.wrong(key, "names an unspecified address: name one that the control plane can connect to"));
    }
    Ok(Some(url.trim_end_matches('/').to_owned()))
}

fn sandbox(settings: &Settings) -> Result<TaskSandbox, ConfigError> {
    let warm = settings.integer_in("worker.sandbox.warm", "a number from 0 to 64", 0..=64)?;
    Ok(TaskSandbox {
        image: settings.plain("worker.sandbox.image"),
        limits: settings.plain("worker.sandbox.limits").unwrap_or_default(),
        provider: settings.choice("worker.sandbox.provider")?.unwrap_or("namespace"),
        warm: usize::try_from(warm).unwrap_or_default(),
    })
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
