//! Pushes of tasks to workers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ipnet::IpNet;
use tenure_auth::Secret;

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// A name that a queue may give.
const NAME_BYTES: usize = 128;
/// The largest `push.max_in_flight`.
const IN_FLIGHT: u64 = 100_000;

#[derive(Debug, Clone)]
pub struct PushSettings {
    /// Where workers report to. Without a slash at its end.
    pub callback_base_url: Option<String>,
    pub secrets: BTreeMap<String, Secret>,
    pub mtls: BTreeMap<String, MtlsFiles>,
    pub allow_cidrs: Vec<IpNet>,
    pub allow_http: bool,
    /// Pushes that wait for an answer at once, over all queues.
    pub max_in_flight: usize,
}

/// How TLS to a worker is done, beyond the usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MtlsFiles {
    /// Certificate and private key.
    pub own: Option<(PathBuf, PathBuf)>,
    pub ca: Option<PathBuf>,
}

pub(crate) fn push(settings: &Settings) -> Result<PushSettings, ConfigError> {
    let wanted = "a list of networks such as 10.1.0.0/16";
    let in_flight = settings.integer_in("push.max_in_flight", "a number from 1 to 100000", 1..=IN_FLIGHT)?;
    Ok(PushSettings {
        callback_base_url: base_url(settings)?,
        secrets: secrets(settings)?,
        mtls: mtls(settings)?,
        allow_cidrs: settings.list_of("push.allow_cidrs", wanted, net::network)?,
        allow_http: settings.flag("push.allow_http")?,
        max_in_flight: usize::try_from(in_flight).unwrap_or(usize::MAX),
    })
}

fn base_url(settings: &Settings) -> Result<Option<String>, ConfigError> {
    let key = "callback.base_url";
    let Some(text) = settings.plain(key) else { return Ok(None) };
    if !net::is_url(&text) || text.contains(['?', '#']) {
        // Not quoted: somebody may have put a password into it.
        let wanted = "must be an address such as https://tenure.example, without a user, ? and #";
        return Err(settings.wrong(key, wanted));
    }
    Ok(Some(text.trim_end_matches('/').to_owned()))
}

fn secrets(settings: &Settings) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let secrets = named_secrets(settings, "push.secrets", "push.secret_files")?;
    // It is the value of a header.
    if let Some((name, _)) =
        secrets.iter().find(|(_, secret)| !secret.reveal().bytes().all(|b| (0x20..0x7f).contains(&b)))
    {
        let in_file = settings.contents_of("push.secret_files").is_some_and(|files| files.contains_key(name));
        let key = if in_file { "push.secret_files" } else { "push.secrets" };
        return Err(settings.wrong(key, format!("has a secret for `{name}` that is not one line of ASCII")));
    }
    Ok(secrets)
}

/// Secrets by name, `NAME` or `TENANT/NAME`, from two maps: of the secrets themselves, and of files that hold one each.
pub(crate) fn named_secrets(
    settings: &Settings,
    key: &str,
    file_key: &str,
) -> Result<BTreeMap<String, Secret>, ConfigError> {
    let mut secrets = settings.secret_map(key)?;
    check_names(settings, key, secrets.keys())?;
    let files = settings.path_map(file_key)?;
    check_names(settings, file_key, files.keys())?;
    if let Some(name) = files.keys().find(|name| secrets.contains_key(*name)) {
        return Err(settings.wrong(file_key, format!("has `{name}`, which {key} has too: keep one")));
    }
    let read = settings.contents_of(file_key).into_iter().flatten();
    secrets.extend(read.map(|(name, secret)| (name.clone(), secret.clone())));
    Ok(secrets)
}

fn mtls(settings: &Settings) -> Result<BTreeMap<String, MtlsFiles>, ConfigError> {
    let keys = ["push.mtls.cert_files", "push.mtls.key_files", "push.mtls.ca_files"];
    let mut found = Vec::new();
    for key in keys {
        let files = settings.path_map(key)?;
        check_names(settings, key, files.keys())?;
        found.push(files);
    }
    let names: BTreeSet<&String> = found.iter().flat_map(BTreeMap::keys).collect();
    let one = |name: &String| {
        let file = |map: usize| found.get(map).and_then(|files| files.get(name)).cloned();
        let half = |set: &str, missing: &str| {
            settings.wrong(set, format!("has `{name}`, but {missing} has not: set both, or neither"))
        };
        let own = match (file(0), file(1)) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => return Err(half(keys[0], keys[1])),
            (None, Some(_)) => return Err(half(keys[1], keys[0])),
        };
        Ok((name.clone(), MtlsFiles { own, ca: file(2) }))
    };
    names.into_iter().map(one).collect()
}

/// `NAME`, or `TENANT/NAME`.
fn check_names<'a>(
    settings: &Settings,
    key: &str,
    mut names: impl Iterator<Item = &'a String>,
) -> Result<(), ConfigError> {
    let sane = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let fits = |name: &String| {
        let mut parts = name.split('/');
        name.len() <= NAME_BYTES && parts.clone().count() <= 2 && parts.all(sane)
    };
    match names.find(|name| !fits(name)) {
        None => Ok(()),
        Some(_) => {
            Err(settings
                .wrong(key, format!("has a name that is not NAME or TENANT/NAME of at most {NAME_BYTES} bytes")))
        }
    }
}
