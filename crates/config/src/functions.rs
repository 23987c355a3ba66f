//! What runs tasks of jobs: further runtimes, and functions on AWS Lambda.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::error::ConfigError;
use super::net;
use super::settings::Settings;
use super::transport::{is_region, within};

const RUNTIMES: &str = "dispatch.runtimes";
const FUNCTIONS: &str = "dispatch.lambda.functions";
const REGION: &str = "dispatch.lambda.region";
const ENDPOINT: &str = "dispatch.lambda.endpoint_url";
const BACKOFF: &str = "dispatch.retry_backoff";
const BACKOFF_MAX: &str = "dispatch.retry_backoff_max";
/// The longest name of a function: an ARN with a qualifier.
const FUNCTION_BYTES: usize = 200;
/// Runtimes that have a meaning of their own.
const TAKEN: [&str; 6] = ["worker", "ecs_platform", "lambda", "dispatcher", "sandbox", "ecs_udf"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Names of `runtime` that are like `worker`.
    pub runtimes: BTreeSet<String>,
    /// There when functions can be invoked.
    pub lambda: Option<LambdaSettings>,
    /// Before the second attempt of a task of a job, and the most before any attempt.
    pub retry_backoff: Duration,
    pub retry_backoff_max: Duration,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LambdaSettings {
    pub endpoint_url: Option<String>,
    /// Absent: as the environment of AWS tools says.
    pub region: Option<String>,
    /// Operators and the functions that run them.
    pub functions: BTreeMap<String, String>,
}

pub(crate) fn runtimes(settings: &Settings) -> Result<RuntimeSettings, ConfigError> {
    let runtimes: BTreeSet<String> = settings.texts(RUNTIMES).into_iter().collect();
    for name in &runtimes {
        let part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
        let valid = name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.bytes().all(part);
        if !valid {
            let wanted = "names of a lower-case letter, then up to 63 lower-case letters, digits, _ and -";
            return Err(settings.unfit(RUNTIMES, wanted, name));
        }
        if TAKEN.contains(&name.as_str()) {
            return Err(settings.wrong(RUNTIMES, format!("has `{name}`, which has a meaning of its own: remove it")));
        }
    }
    let range = Duration::ZERO..=Duration::from_secs(24 * 3_600);
    let backoff = |key| within(settings, key, "a duration from 0s to 24h", &range);
    let (retry_backoff, retry_backoff_max) = (backoff(BACKOFF)?, backoff(BACKOFF_MAX)?);
    if retry_backoff > retry_backoff_max {
        return Err(settings.wrong(BACKOFF, format!("is longer than {BACKOFF_MAX}: shorten it, or raise that")));
    }
    Ok(RuntimeSettings { runtimes, lambda: lambda(settings)?, retry_backoff, retry_backoff_max })
}

fn lambda(settings: &Settings) -> Result<Option<LambdaSettings>, ConfigError> {
    let region = settings.plain(REGION);
    if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
        return Err(settings.unfit(REGION, "a region such as eu-central-1", region));
    }
    let endpoint_url = settings.plain(ENDPOINT);
    if endpoint_url.as_deref().is_some_and(|url| !net::is_url(url)) {
        // Not quoted: what is wrong may hold a password.
        let problem = "must be an address such as https://lambda.eu-central-1.amazonaws.com, without a password";
        return Err(settings.wrong(ENDPOINT, problem));
    }
    let mut functions = BTreeMap::new();
    for (operator, function) in settings.map(FUNCTIONS) {
        let (operator, function) = (operator.trim(), function.trim());
        let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':' | b'.' | b'$' | b'/');
        if function.is_empty() || function.len() > FUNCTION_BYTES || !function.bytes().all(named) {
            let problem = format!("has no valid name for `{operator}`: use the name or the ARN of a function");
            return Err(settings.wrong(FUNCTIONS, problem));
        }
        functions.insert(operator.to_owned(), function.to_owned());
    }
    if functions.is_empty() && region.is_none() && endpoint_url.is_none() {
        return Ok(None);
    }
    Ok(Some(LambdaSettings { endpoint_url, region, functions }))
}
