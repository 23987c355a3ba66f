//! How wake-ups travel.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tenure_auth::Secret;

use super::error::ConfigError;
use super::net;
use super::settings::Settings;

/// Names that others see must not be endless.
const NAME_BYTES: usize = 128;
/// What SQS allows a name to have.
const SQS_NAME: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportName {
    Embedded,
    Redis,
    Sqs,
}

#[derive(Debug, Clone)]
pub struct TransportSettings {
    /// Of queues that are made from now on.
    pub default: TransportName,
    pub sweep_interval: Duration,
    pub outbox_max_tries: u32,
    /// How the wake-up queues of jobs are called outside, if not by their own names.
    pub queue_names: BTreeMap<String, String>,
    /// How long a task of a job waits for another wake-up.
    pub rewake_after: Duration,
    /// There when `redis.url` is set.
    pub redis: Option<RedisSettings>,
    /// There when `sqs.region` or `sqs.endpoint_url` is set, or `transport.default` is sqs.
    pub sqs: Option<SqsSettings>,
}

#[derive(Debug, Clone)]
pub struct RedisSettings {
    /// `redis://`, `rediss://` or `unix://`. May hold a password.
    pub url: Secret,
    pub group: String,
    pub key_prefix: String,
    /// Roots for its certificate. Absent: those of the system.
    pub ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct SqsSettings {
    pub endpoint_url: Option<String>,
    /// Absent: as the environment of AWS tools says.
    pub region: Option<String>,
    pub queue_prefix: String,
    pub create_queues: bool,
    /// Whole seconds.
    pub visibility_timeout: Duration,
}

pub(crate) fn transport(settings: &Settings) -> Result<TransportSettings, ConfigError> {
    let default = match settings.choice("transport.default")? {
        Some("redis") => TransportName::Redis,
        Some("sqs") => TransportName::Sqs,
        _ => TransportName::Embedded,
    };
    let redis = redis(settings)?;
    if default == TransportName::Redis && redis.is_none() && !settings.is_set("redis.url_file") {
        return Err(settings.wrong("transport.default", "is redis, but redis.url is not set: set it"));
    }
    let sweep = RangeInclusive::new(Duration::from_secs(1), Duration::from_secs(3600));
    let tries = settings.integer_in("outbox.max_tries", "a number from 1 to 1000", 1..=1000)?;
    Ok(TransportSettings {
        default,
        sweep_interval: within(settings, "transport.sweep_interval", "a duration from 1s to 1h", &sweep)?,
        outbox_max_tries: u32::try_from(tries).unwrap_or(u32::MAX),
        queue_names: queue_names(settings)?,
        rewake_after: within(settings, "dispatch.rewake_after", "a duration from 1s to 1h", &sweep)?,
        redis,
        sqs: sqs(settings, default)?,
    })
}

pub(crate) fn within(
    settings: &Settings,
    key: &str,
    wanted: &str,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, ConfigError> {
    let duration = settings.duration(key)?;
    if range.contains(&duration) {
        return Ok(duration);
    }
    Err(settings.unfit(key, wanted, settings.text(key).unwrap_or_default()))
}

/// Two queues under one name would give each other's workers what they cannot claim.
fn queue_names(settings: &Settings) -> Result<BTreeMap<String, String>, ConfigError> {
    let key = "dispatch.queue_names";
    let mut names = BTreeMap::new();
    for (queue, name) in settings.map(key) {
        let is_queue = match queue.split_once('.') {
            None => matches!(queue, "worker" | "sandbox"),
            Some((kind, rest)) => matches!(kind, "worker" | "buffer") && !rest.is_empty(),
        };
        if !is_queue {
            let wanted = "names of queues: worker, worker.{pool}, sandbox, buffer.{dataset} or buffer.{dataset}.dead";
            return Err(settings.unfit(key, wanted, queue));
        }
        if name.is_empty() || name.len() > NAME_BYTES || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let wanted = format!("texts of 1 to {NAME_BYTES} bytes without white space");
            return Err(settings.unfit(key, &wanted, name));
        }
        if names.values().any(|other| other == name) {
            return Err(settings.wrong(key, format!("gives two queues the name {name}: give each its own")));
        }
        names.insert(queue.to_owned(), name.to_owned());
    }
    Ok(names)
}

fn redis(settings: &Settings) -> Result<Option<RedisSettings>, ConfigError> {
    let group = settings.plain("redis.group");
    let group = group.ok_or_else(|| settings.wrong("redis.group", "is empty: name a group, or remove the key"))?;
    let key_prefix = settings.plain("redis.key_prefix").unwrap_or_default();
    for (key, text) in [("redis.group", &group), ("redis.key_prefix", &key_prefix)] {
        if text.len() > NAME_BYTES || text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            let wanted = format!("a text of at most {NAME_BYTES} bytes without white space");
            return Err(settings.unfit(key, &wanted, text));
        }
    }
    let ca_file = settings.path("redis.tls.ca_file")?;
    let Some(url) = settings.secret("redis.url")? else { return Ok(None) };
    let key = if settings.is_set("redis.url") { "redis.url" } else { "redis.url_file" };
    let Some(place) = redis_place(url.reveal()) else {
        let wanted = "must be an address such as rediss://user:password@host:6379/0, with %XX for what is special in a \
                      password and nothing behind the number of the database, or unix:///path";
        return Err(settings.wrong(key, wanted));
    };
    if ca_file.is_some() && !place.tls {
        return Err(
            settings.wrong("redis.tls.ca_file", "is set, but redis.url is without TLS: begin it with rediss://")
        );
    }
    Ok(Some(RedisSettings { url, group, key_prefix, ca_file }))
}

/// What an address of a Redis says about the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RedisPlace {
    pub tls: bool,
    pub password: bool,
    pub loopback: bool,
}

/// `redis://user:password@host:port/database`, the same with `rediss`, or `unix:///path`. Fragments are refused: one of
/// them turns off the check of the certificate.
pub(crate) fn redis_place(url: &str) -> Option<RedisPlace> {
    if let Some(path) = url.strip_prefix("unix://") {
        let sane = path.starts_with('/') && !path.contains(|c: char| c.is_whitespace() || c.is_control() || c == '#');
        return sane.then(|| RedisPlace { tls: false, password: path.contains("pass="), loopback: true });
    }
    let (tls, rest) = match url.strip_prefix("rediss://") {
        Some(rest) => (true, rest),
        None => (false, url.strip_prefix("redis://")?),
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#');
    if authority.contains(odd) || !net::is_authority(host) || !database.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let password = user.split_once(':').is_some_and(|(_, password)| !password.is_empty());
    Some(RedisPlace { tls, password, loopback: net::is_loopback(net::host_of(host)) })
}

fn sqs(settings: &Settings, default: TransportName) -> Result<Option<SqsSettings>, ConfigError> {
    let region = settings.plain("sqs.region");
    if let Some(region) = region.as_deref().filter(|region| !is_region(region)) {
        return Err(settings.unfit("sqs.region", "a region such as eu-central-1", region));
    }
    let endpoint_url = settings.plain("sqs.endpoint_url");
    if endpoint_url.as_deref().is_some_and(|url| !net::is_url(url)) {
        // Not quoted: what is wrong may hold a password.
        let problem = "must be an address such as https://sqs.eu-central-1.amazonaws.com, without a password";
        return Err(settings.wrong("sqs.endpoint_url", problem));
    }
    let queue_prefix = settings.plain("sqs.queue_prefix").unwrap_or_default();
    let sane = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if queue_prefix.len() >= SQS_NAME || !queue_prefix.chars().all(sane) {
        let wanted = "a text of at most 79 letters, digits, `-` and `_`";
        return Err(settings.unfit("sqs.queue_prefix", wanted, &queue_prefix));
    }
    let hidden = RangeInclusive::new(Duration::from_secs(1), Duration::from_secs(12 * 3600));
    let wanted = "a duration of whole seconds from 1s to 12h";
    let key = "sqs.visibility_timeout";
    let visibility_timeout = within(settings, key, wanted, &hidden)?;
    if visibility_timeout.subsec_nanos() != 0 {
        return Err(settings.unfit(key, wanted, settings.text(key).unwrap_or_default()));
    }
    let create_queues = settings.flag("sqs.create_queues")?;
    if region.is_none() && endpoint_url.is_none() && default != TransportName::Sqs {
        return Ok(None);
    }
    Ok(Some(SqsSettings { endpoint_url, region, queue_prefix, create_queues, visibility_timeout }))
}

pub(crate) fn is_region(text: &str) -> bool {
    text.len() <= 32 && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_redis_say_how_it_is_reached() {
        for (url, tls, password, loopback) in [
            ("redis://localhost", false, false, true),
            ("redis://127.0.0.1:6379/", false, false, true),
            ("redis://[::1]:6379/3", false, false, true),
            ("redis://:p@redis.example:6379/0", false, true, false),
            ("rediss://u:p%2F@redis.example", true, true, false),
            ("rediss://u@10.0.0.1", true, false, false),
            ("unix:///run/redis.sock", false, false, true),
            ("unix:///run/redis.sock?db=1&pass=p", false, true, true),
        ] {
            assert_eq!(redis_place(url), Some(RedisPlace { tls, password, loopback }), "{url}");
        }
        for url in [
            "",
            "redis.example",
            "http://redis.example",
            "unix://run/redis.sock",
            "unix:///run/redis.sock#x",
            "redis://",
            "redis://h/x",
            "redis://h/0/1",
            "redis://u:p/x@h",
            "redis://h:port",
            "redis://h h",
            "rediss://h/#insecure",
            "rediss://h#insecure",
            "redis://h/?protocol=resp3",
            "redis://h?x",
        ] {
            assert_eq!(redis_place(url), None, "{url}");
        }
    }
}
