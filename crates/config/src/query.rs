//! Who runs queries, and their limits.

use std::path::PathBuf;
use std::time::Duration;

use tenure_auth::Secret;

use super::error::ConfigError;
use super::settings::Settings;
use super::transport::within;

const ENDPOINT: &str = "query.endpoint";
const MEMORY: &str = "query.memory";
const MIB: u64 = 1 << 20;

#[derive(Debug, Clone)]
pub struct QuerySettings {
    /// Whether a query process is started beside the server.
    pub enabled: bool,
    /// Absent: looked for.
    pub binary: Option<PathBuf>,
    /// Processes that others run, in place of one of its own.
    pub endpoints: Vec<String>,
    pub token: Option<Secret>,
    pub at_once: u16,
    pub waiting: u16,
    pub memory_mib: u32,
    pub user_timeout: Duration,
    pub task_timeout: Duration,
    pub per_minute: u32,
}

pub(crate) fn query(settings: &Settings) -> Result<QuerySettings, ConfigError> {
    let endpoints = settings.texts(ENDPOINT);
    for endpoint in &endpoints {
        if !(endpoint.starts_with("unix:/") || endpoint.starts_with("http://")) {
            return Err(settings.unfit(
                ENDPOINT,
                "addresses such as unix:/run/query.sock and http://10.0.0.7:7425",
                endpoint,
            ));
        }
    }
    let token = settings.secret("query.token")?;
    if endpoints.iter().any(|endpoint| endpoint.starts_with("http://")) && token.is_none() {
        return Err(settings.wrong(ENDPOINT, "names a TCP address, which needs query.token_file"));
    }
    let number = |key: &str, wanted: &str, range| settings.integer_in(key, wanted, range);
    let range = Duration::from_secs(1)..=Duration::from_secs(3_600);
    let timeout = |key| within(settings, key, "a duration from 1s to 1h", &range);
    let memory = settings.size(MEMORY)?;
    if !(16 * MIB..=1_048_576 * MIB).contains(&memory) {
        return Err(settings.unfit(MEMORY, "a size from 16MiB", settings.text(MEMORY).unwrap_or_default()));
    }
    let small = |number: u64| u16::try_from(number).unwrap_or(u16::MAX);
    Ok(QuerySettings {
        enabled: settings.flag("query.enabled")?,
        binary: settings.path("query.binary")?,
        endpoints,
        token,
        at_once: small(number("query.at_once", "a number from 1 to 256", 1..=256)?),
        waiting: small(number("query.waiting", "a number from 0 to 10000", 0..=10_000)?),
        memory_mib: u32::try_from(memory / MIB).unwrap_or(u32::MAX),
        user_timeout: timeout("query.user_timeout")?,
        task_timeout: timeout("query.task_timeout")?,
        per_minute: u32::try_from(number("query.per_minute", "a number from 0 to 1000000", 0..=1_000_000)?)
            .unwrap_or(0),
    })
}
