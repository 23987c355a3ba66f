use super::Report;
use super::auth::inline;
use crate::config::Config;
use crate::net;
use crate::transport::{SqsSettings, redis_place};

pub(super) fn check(config: &Config, report: &mut Report) {
    redis(config, report);
    sqs(config.transport.sqs.as_ref(), report);
}

fn redis(config: &Config, report: &mut Report) {
    let place = config.transport.redis.as_ref().and_then(|redis| redis_place(redis.url.reveal()));
    let Some(place) = place else {
        ["redis.tls", "redis.password", "redis.url_file"]
            .into_iter()
            .for_each(|check| report.pass(check, "is not used: redis.url is not set"));
        return;
    };
    let plain = "use rediss:// in redis.url, and set redis.tls.ca_file if you use a private CA";
    match (place.tls, place.loopback, place.password) {
        (true, _, _) => report.pass("redis.tls", "is on"),
        (false, true, _) => report.pass("redis.tls", "is off, on a loopback address"),
        (false, false, true) => {
            report.risk("redis.tls", "the password of Redis crosses the network unencrypted", plain)
        }
        (false, false, false) => report.risk("redis.tls", "wake-ups cross the network unencrypted", plain),
    }
    if place.password || place.loopback {
        let message = if place.password { "is set" } else { "is not set, on a loopback address" };
        report.pass("redis.password", message);
    } else {
        let fix = "give Redis a user and a password, and name them in redis.url";
        report.warn("redis.password", "anyone who reaches Redis can remove and create wake-ups", fix);
    }
    if place.password {
        inline(config, report, "redis.url", "redis.url_file");
    } else {
        report.pass("redis.url_file", "redis.url contains no password");
    }
}

fn sqs(sqs: Option<&SqsSettings>, report: &mut Report) {
    let Some(sqs) = sqs else {
        ["sqs.endpoint_url", "sqs.create_queues"]
            .into_iter()
            .for_each(|check| report.pass(check, "is not used: sqs.region is not set"));
        return;
    };
    let plain = sqs.endpoint_url.as_deref().and_then(|url| url.strip_prefix("http://"));
    let is_near = |rest: &str| net::is_loopback(net::host_of(rest.split(['/', '?', '#']).next().unwrap_or_default()));
    if plain.is_some_and(|rest| !is_near(rest)) {
        let fix = "use https:// in sqs.endpoint_url, or remove it";
        report.risk("sqs.endpoint_url", "signed requests cross the network unencrypted", fix);
    } else {
        report.pass("sqs.endpoint_url", "is encrypted, or on a loopback address");
    }
    if sqs.create_queues {
        let fix = "create the SQS queues beforehand, and set sqs.create_queues: false";
        report.warn("sqs.create_queues", "the control plane may create SQS queues; it removes none", fix);
    } else {
        report.pass("sqs.create_queues", "SQS queues are created by others");
    }
}
