//! Redis and SQS: can they be reached, and do they have what the queues need?

use std::sync::Arc;
use std::time::Duration;

use tenure_config::{Config, SqsSettings, TransportName};
use tenure_core::queue::{JOB_QUEUES, Queue, Transport};
use tenure_engine::transport::{TransportError, Upkeep};

use super::Finding;
use crate::transports;

/// For all queues of one transport.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A queue that is nowhere.
const NO_QUEUE: &str = "tenure-doctor";

pub async fn check(config: &Config, queues: &[Queue]) -> Vec<Finding> {
    let settings = &config.transport;
    let names = |transport| -> Vec<&str> {
        let own = queues.iter().filter(|queue| !queue.name.starts_with(JOB_QUEUES));
        own.filter(|queue| queue.transport == transport).map(|queue| &*queue.name).collect()
    };
    let mut findings = Vec::new();
    let of_redis = names(Transport::Redis);
    match &settings.redis {
        Some(settings) => findings.extend(match transports::redis(settings, &config.transport.queue_names) {
            Ok(redis) => self::redis(&redis, &settings.group, &of_redis).await,
            Err(stop) => vec![Finding::fail("redis", stop.to_string(), "fix it; `tenure serve` would not start")],
        }),
        None => findings.extend(unset("redis", "redis.url", &of_redis)),
    }
    let of_sqs = names(Transport::Sqs);
    match &settings.sqs {
        Some(settings) => findings.extend(match transports::sqs(settings, &config.transport.queue_names).await {
            Ok(sqs) => self::sqs(&sqs, settings, &of_sqs).await,
            Err(stop) => vec![Finding::fail("sqs", stop.to_string(), "fix it; `tenure serve` would not start")],
        }),
        None => findings.extend(unset("sqs", "sqs.region", &of_sqs)),
    }
    if settings.default == TransportName::Embedded && findings.is_empty() {
        findings.push(Finding::ok("transport", "embedded: no other service is needed"));
    }
    findings
}

/// Queues whose transport is not configured.
fn unset(check: &'static str, key: &str, queues: &[&str]) -> Option<Finding> {
    let first = queues.first()?;
    let message = format!("{} with this transport ({first} …), but {key} is not set", count(queues.len()));
    let fix = format!("set {key}, or change the queues with `tenure queue set NAME --transport embedded`");
    Some(Finding::fail(check, message, fix))
}

async fn redis(redis: &dyn Upkeep, group: &str, queues: &[&str]) -> Vec<Finding> {
    let check = "redis";
    let fix = "check that it runs, and host, port, user, password and TLS in redis.url";
    let found = match look(redis, queues).await {
        Err(error) => return vec![Finding::fail(check, format!("redis.url: {error}"), fix)],
        Ok(found) => found,
    };
    let mut findings: Vec<_> = found
        .refused
        .iter()
        .map(|(queue, error)| {
            let fix = "let the user of redis.url use the key, or remove the other data under it";
            Finding::fail(check, format!("stream of queue {queue}: {error}"), fix)
        })
        .collect();
    if findings.is_empty() {
        let missing = match found.missing.len() {
            0 => String::new(),
            missing => format!("; that of {missing} is created when it is first needed"),
        };
        let message = format!("reached; {} with the consumer group {group}{missing}", count(queues.len()));
        findings.push(Finding::ok(check, message));
    }
    findings
}

async fn sqs(sqs: &dyn Upkeep, settings: &SqsSettings, queues: &[&str]) -> Vec<Finding> {
    let check = "sqs";
    let found = match look(sqs, queues).await {
        Err(error) => {
            let fix = "check sqs.region, sqs.endpoint_url and the AWS credentials in the environment";
            return vec![Finding::fail(check, error.to_string(), fix)];
        }
        Ok(found) => found,
    };
    let mut findings: Vec<_> = found
        .refused
        .iter()
        .map(|(queue, error)| {
            let fix = "fix the name of the queue, or the permissions of the credentials";
            Finding::fail(check, format!("queue {queue}: {error}"), fix)
        })
        .collect();
    if !settings.create_queues {
        findings.extend(found.missing.iter().map(|queue| {
            let message = format!("the queue {}{queue} does not exist", settings.queue_prefix);
            Finding::fail(check, message, "create it in SQS, or set sqs.create_queues: true")
        }));
    }
    if findings.is_empty() {
        let missing = match found.missing.len() {
            0 => String::new(),
            missing => format!("; {missing} of them created when first needed"),
        };
        findings.push(Finding::ok(check, format!("reached; {} with this transport{missing}", count(queues.len()))));
    }
    findings
}

/// What was found of the queues.
#[derive(Debug, Default)]
struct Found<'a> {
    /// Not there yet.
    missing: Vec<&'a str>,
    refused: Vec<(&'a str, TransportError)>,
}

/// Looks at each queue. The error is of the service.
async fn look<'a>(transport: &dyn Upkeep, queues: &[&'a str]) -> Result<Found<'a>, TransportError> {
    let look = async {
        // An answer that it does not exist shows that the service was reached and accepts the caller.
        let refused_any = match transport.is_prepared(&Arc::from(NO_QUEUE)).await {
            Err(error @ TransportError::Refused { .. }) if !queues.is_empty() => Some(error),
            answer => answer.map(|_| None)?,
        };
        let mut found = Found::default();
        for queue in queues {
            match transport.is_prepared(&Arc::from(*queue)).await {
                Ok(true) => {}
                Ok(false) => found.missing.push(queue),
                Err(error) if refused_any.as_ref() == Some(&error) => return Err(error),
                Err(error @ TransportError::Refused { .. }) => found.refused.push((queue, error)),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    };
    let late =
        |_| TransportError::Unreachable { service: transport.name(), reason: "it does not answer in time".into() };
    tokio::time::timeout(TIMEOUT, look).await.map_err(late)?
}

fn count(queues: usize) -> String {
    match queues {
        0 => "no queue yet".to_owned(),
        1 => "1 queue".to_owned(),
        _ => format!("{queues} queues"),
    }
}
