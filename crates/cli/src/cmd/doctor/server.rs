//! The server, as a client sees it.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use tenure_contract::user::Health;

use super::super::connect::{ClientArgs, SERVER_DEFAULT, ServerArgs};
use super::Finding;

const CHECK: &str = "server";
const TIMEOUT: Duration = Duration::from_secs(5);
/// Beyond this, ages and times in lists look wrong.
const CLOCK_SECONDS: i64 = 3;

pub async fn check(args: &ClientArgs) -> Vec<Finding> {
    let (health, date) = match ask(&args.at).await {
        Ok(answer) => answer,
        // Nobody said that a server should be running.
        Err(why) if args.at.server == SERVER_DEFAULT => {
            return vec![Finding::warn(
                CHECK,
                format!("none at {}: {why}", args.at.server),
                "start one with `tenure up`",
            )];
        }
        Err(why) => {
            let fix = "check that it is running and that the address is right";
            return vec![Finding::fail(CHECK, format!("none at {}: {why}", args.at.server), fix)];
        }
    };
    let mut findings = vec![well(&health, &args.at.server), version(&health.version)];
    if let Some(theirs) = date {
        findings.push(clock("server clock", "the server", Timestamp::now().as_second() - theirs.as_second()));
    }
    findings.push(key(args).await);
    findings
}

/// Health, and the time by the server's clock.
async fn ask(at: &ServerArgs) -> Result<(Health, Option<Timestamp>), String> {
    let plain = |error: reqwest::Error| {
        let error = error.without_url();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = cause.to_string();
            source = cause.source();
        }
        text
    };
    let mut client = reqwest::Client::builder().timeout(TIMEOUT);
    if let Some(path) = &at.ca_file {
        let pem = std::fs::read(path).map_err(|error| format!("{} could not be read: {error}", path.display()))?;
        client = client.tls_certs_only(reqwest::Certificate::from_pem_bundle(&pem).map_err(plain)?);
    }
    let client = client.build().map_err(plain)?;
    let url = format!("{}/api/v1/health", at.server.trim_end_matches('/'));
    let answer = client.get(url).send().await.map_err(plain)?;
    let date = answer.headers().get("date").and_then(|date| date.to_str().ok()).and_then(http_date);
    let status = answer.status();
    let health = answer.json().await.map_err(|_| format!("the answer (HTTP {status}) is not from a tenure server"))?;
    Ok((health, date))
}

fn http_date(text: &str) -> Option<Timestamp> {
    rfc2822::DateTimeParser::new().parse_timestamp(text).ok()
}

fn well(health: &Health, server: &str) -> Finding {
    let message = format!("{server} says {}, store {}", health.status, health.store);
    match health.status.as_str() {
        "ok" => Finding::ok(CHECK, message),
        _ => {
            let why = health.message.as_deref().unwrap_or("it gives no reason");
            Finding::fail(CHECK, format!("{message}: {why}"), "check the store; the server log has details")
        }
    }
}

fn version(theirs: &str) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    match theirs == ours {
        true => Finding::ok("version", format!("{ours}, both here and there")),
        false => {
            let message = format!("{ours} here, {theirs} at the server");
            Finding::warn("version", message, "use the same version on both sides")
        }
    }
}

/// `behind` is how many seconds the other clock is behind this one.
pub fn clock(check: &'static str, whose: &str, behind: i64) -> Finding {
    if behind.abs() <= CLOCK_SECONDS {
        return Finding::ok(check, format!("this machine and {whose} agree"));
    }
    let direction = if behind > 0 { "behind" } else { "ahead of" };
    Finding::warn(
        check,
        format!("{whose} is {} s {direction} this machine", behind.unsigned_abs()),
        "synchronize the clocks; leases are safe, but delays and ages look wrong",
    )
}

async fn key(args: &ClientArgs) -> Finding {
    let check = "API key";
    let client = match args.client() {
        Ok(client) => client,
        Err(error) => {
            return Finding::fail(check, error.to_string(), "use a valid key: `tenure login` stores a new one");
        }
    };
    match client.queues(None).await {
        Ok(_) => Finding::ok(check, "the API accepts this caller"),
        Err(error) => Finding::fail(
            check,
            error.to_string(),
            "log in with `tenure login`, or set a key with --api-key-file or TENURE_API_KEY",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn the_date_of_http_is_read() {
        assert_eq!(http_date("Wed, 15 Jan 2025 10:00:00 GMT").unwrap().to_string(), "2025-01-15T10:00:00Z");
    }

    #[test]
    fn clocks_that_differ_are_noticed() {
        assert_eq!(clock("c", "the server", 2).status, Status::Ok);
        assert_eq!(clock("c", "the server", -40).message, "the server is 40 s ahead of this machine");
    }

    #[test]
    fn another_version_is_a_warning() {
        assert_eq!(version(env!("CARGO_PKG_VERSION")).status, Status::Ok);
        assert_eq!(version("0.0.0").status, Status::Warn);
    }
}
