use std::path::PathBuf;

use ipnet::IpNet;
use tenure_auth::Secret;

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// Tokens that the control plane issues to running tasks.
#[derive(Debug, Clone)]
pub struct Tokens {
    pub issuer: String,
    /// Absent: in the data folder, made at the first start. It need not be there yet.
    pub key_file: Option<PathBuf>,
    pub previous_key_files: Vec<PathBuf>,
    /// As good as the previous ones.
    pub verify_key_files: Vec<PathBuf>,
    /// HS256, for older callback workers.
    pub callback_secret: Option<Secret>,
}

/// Calls to addresses that users name.
#[derive(Debug, Clone)]
pub struct Outbound {
    pub allow_cidrs: Vec<IpNet>,
    pub allow_http: bool,
}

pub(crate) fn tokens(settings: &Settings) -> Result<Tokens, ConfigError> {
    let issuer = settings.plain("tokens.issuer");
    Ok(Tokens {
        issuer: issuer.ok_or_else(|| settings.wrong("tokens.issuer", "is empty: name an issuer, or remove the key"))?,
        key_file: settings.path("dispatch.capability.key_file")?,
        previous_key_files: settings.paths("dispatch.capability.previous_key_files"),
        verify_key_files: settings.paths("dispatch.capability.verify_key_files"),
        callback_secret: settings.secret("callback.shared_secret")?,
    })
}

pub(crate) fn outbound(settings: &Settings) -> Result<Outbound, ConfigError> {
    let wanted = "a list of networks such as 10.1.0.0/16";
    Ok(Outbound {
        allow_cidrs: settings.list_of("outbound.allow_cidrs", wanted, net::network)?,
        allow_http: settings.flag("outbound.allow_http")?,
    })
}
