use std::time::Duration;

use ipnet::IpNet;
use tenure_tls::{ClientAuth, ServerTls};

use super::error::ConfigError;
use super::net;
use super::ports::Ports;
use super::settings::Settings;

/// More connections than any machine has file descriptors for.
const CONNECTIONS: u64 = 1_000_000;
/// Less would refuse ordinary requests.
const REQUEST_MEMORY_MIN: u64 = 1 << 20;

/// The HTTP listener of the control plane.
#[derive(Debug, Clone)]
pub struct Server {
    pub host: String,
    pub port: u16,
    /// Absent: plain HTTP.
    pub tls: Option<ServerTls>,
    /// `*`, or origins as browsers send them.
    pub cors_allowed_origins: Vec<String>,
    /// Names, beside loopback ones, by which a server without keys may be called.
    pub allowed_hosts: Vec<String>,
    pub preview: Preview,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub write_timeout: Duration,
    pub request_memory_bytes: usize,
    pub trusted_proxies: Vec<IpNet>,
}

/// How ports of sandboxes can be reached through the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// In lower case, perhaps with a port. Absent: `localhost` with the port of the server.
    pub domain: Option<String>,
    pub ports: Ports,
    pub auth: PreviewAuth,
}

/// What preview hosts require.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreviewAuth {
    Key,
    None,
}

impl Preview {
    /// The domain of a server that listens on this port.
    pub fn domain_at(&self, port: u16) -> String {
        self.domain.clone().unwrap_or_else(|| format!("localhost:{port}"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    pub level: &'static str,
    /// A line for each request.
    pub access: bool,
    /// Absent: JSON, unless somebody looks at it on a terminal.
    pub format: Option<LogFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Pretty,
}

pub(crate) fn server(settings: &Settings) -> Result<Server, ConfigError> {
    let host = settings.plain("server.host");
    let host = host.ok_or_else(|| settings.wrong("server.host", "is empty: name an address such as 127.0.0.1"))?;
    let port = settings.integer_in("server.port", "a port from 0 to 65535", 0..=u64::from(u16::MAX))?;
    let connections = settings.integer_in("server.max_connections", "a number from 1 to 1000000", 1..=CONNECTIONS)?;
    let key = "server.max_connections_per_address";
    let of_address = settings.integer_in(key, "a number from 1 to 1000000", 1..=CONNECTIONS)?;
    let of_address = if settings.is_set(key) { of_address } else { connections.div_ceil(2) };
    let key = "server.request_memory";
    let memory = settings.size(key)?;
    if memory < REQUEST_MEMORY_MIN {
        return Err(settings.wrong(key, "must be at least 1MiB"));
    }
    let origin = |text: &str| net::is_origin(text).then(|| text.to_owned());
    Ok(Server {
        host,
        port: u16::try_from(port).unwrap_or_default(),
        tls: tls(settings)?,
        cors_allowed_origins: settings.list_of(
            "server.cors_allowed_origins",
            "a list of `*` or origins such as https://console.example.com, without a path",
            origin,
        )?,
        allowed_hosts: settings.list_of("server.allowed_hosts", "a list of host names without a port", |text| {
            (net::is_authority(text) && net::host_of(text) == text).then(|| text.to_owned())
        })?,
        preview: preview(settings)?,
        max_connections: usize::try_from(connections).unwrap_or(usize::MAX),
        max_connections_per_address: usize::try_from(of_address).unwrap_or(usize::MAX),
        write_timeout: settings.above_zero("server.write_timeout")?,
        request_memory_bytes: usize::try_from(memory).unwrap_or(usize::MAX >> 1).min(usize::MAX >> 1),
        trusted_proxies: settings.list_of(
            "server.trusted_proxies",
            "a list of networks such as 10.0.0.0/8",
            net::network,
        )?,
    })
}

fn preview(settings: &Settings) -> Result<Preview, ConfigError> {
    let key = "server.preview_domain";
    let domain = settings.plain(key).map(|domain| domain.to_ascii_lowercase());
    // Hosts below it have a label more, which an address cannot have.
    let fits = |domain: &str| {
        let labels = net::host_of(domain).split('.').all(|label| !label.is_empty());
        net::is_authority(domain) && labels && !net::is_address(net::host_of(domain))
    };
    if let Some(domain) = domain.as_deref().filter(|domain| !fits(domain)) {
        return Err(settings.unfit(key, "a domain such as preview.example.com or localhost:7423", domain));
    }
    let key = "server.preview_ports";
    let text = settings.plain(key).unwrap_or_default();
    let ports = Ports::parse(&text)
        .ok_or_else(|| settings.unfit(key, "ports and ranges such as 1024-65535 or 3000,8000-8999", &text))?;
    let auth = match settings.choice("server.preview_auth")? {
        Some("none") => PreviewAuth::None,
        _ => PreviewAuth::Key,
    };
    Ok(Preview { domain, ports, auth })
}

fn tls(settings: &Settings) -> Result<Option<ServerTls>, ConfigError> {
    let (ca_key, auth_key) = ("server.tls.client_ca_file", "server.tls.client_auth");
    let pair = settings.pair("server.tls.cert_file", "server.tls.key_file")?;
    let client_ca_file = settings.path(ca_key)?;
    let client_auth = match (settings.choice(auth_key)?, settings.is_set(auth_key)) {
        (_, false) if client_ca_file.is_some() => ClientAuth::Required,
        (Some("optional"), _) => ClientAuth::Optional,
        (Some("required"), _) => ClientAuth::Required,
        _ => ClientAuth::Off,
    };
    if client_auth != ClientAuth::Off && client_ca_file.is_none() {
        return Err(settings.wrong(auth_key, format!("asks for certificates of clients: set {ca_key} too")));
    }
    let Some((cert_file, key_file)) = pair else {
        if client_ca_file.is_some() {
            return Err(settings.wrong(ca_key, "needs TLS: set server.tls.cert_file and server.tls.key_file too"));
        }
        return Ok(None);
    };
    Ok(Some(ServerTls { client_ca_file, client_auth, ..ServerTls::new(cert_file, key_file) }))
}

pub(crate) fn logging(settings: &Settings) -> Result<Logging, ConfigError> {
    let format = settings.choice("logging.format")?.map(|name| match name {
        "pretty" => LogFormat::Pretty,
        _ => LogFormat::Json,
    });
    let level = settings.choice("logging.level")?.unwrap_or("info");
    Ok(Logging { level, access: settings.flag("logging.access")?, format })
}
