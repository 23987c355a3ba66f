use ipnet::IpNet;
use tenure_tls::{ClientAuth, ServerTls};

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// More connections than any machine has file descriptors for.
const CONNECTIONS: u64 = 1_000_000;

/// The HTTP listener of the control plane.
#[derive(Debug, Clone)]
pub struct Server {
    pub host: String,
    pub port: u16,
    /// Absent: plain HTTP.
    pub tls: Option<ServerTls>,
    /// `*`, or origins as browsers send them.
    pub cors_allowed_origins: Vec<String>,
    pub max_connections: usize,
    pub trusted_proxies: Vec<IpNet>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logging {
    pub level: &'static str,
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
        max_connections: usize::try_from(connections).unwrap_or(usize::MAX),
        trusted_proxies: settings.list_of(
            "server.trusted_proxies",
            "a list of networks such as 10.0.0.0/8",
            net::network,
        )?,
    })
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
    Ok(Logging { level: settings.choice("logging.level")?.unwrap_or("info"), format })
}
