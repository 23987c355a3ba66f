//! A Postgres store: can it be reached, and is it set up to keep what it is given?

use std::time::Duration;

use jiff::Timestamp;
use tenure_engine::store::postgres::{PostgresAddress, explain_tls};
use tokio_postgres::Client;

use super::server::clock;
use super::{Finding, store};

const CONNECT: Duration = Duration::from_secs(5);
const NAPTIME_SECONDS: i64 = 1;

pub async fn check(url: &str, known: i64) -> Vec<Finding> {
    let client = match connect(url).await {
        Ok(client) => client,
        Err(why) => {
            let fix = "check that Postgres is running, and the host, database, user and password in the address";
            return vec![Finding::fail("store", format!("Postgres cannot be reached: {why}"), fix)];
        }
    };
    match look(&client, known).await {
        Ok(findings) => findings,
        Err(error) => {
            let fix = "check the permissions of the user and the Postgres log";
            vec![Finding::fail("store", format!("Postgres refused a query: {}", plain(&error)), fix)]
        }
    }
}

pub async fn connect(url: &str) -> Result<Client, String> {
    let PostgresAddress { mut config, tls } = PostgresAddress::parse(url).map_err(|error| plain(&error))?;
    config.application_name("tenure doctor").connect_timeout(CONNECT);
    let connected = tokio::time::timeout(CONNECT, config.connect(tls)).await;
    let (client, connection) =
        connected.map_err(|_| "no answer within 5 s".to_owned())?.map_err(|error| plain(&error))?;
    tokio::spawn(connection);
    Ok(client)
}

/// The error and its causes; Postgres names neither address nor password.
fn plain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(why) = explain_tls(error) {
        return why;
    }
    let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
    format!("{error}{source}")
}

async fn look(client: &Client, known: i64) -> Result<Vec<Finding>, tokio_postgres::Error> {
    let there: bool = client.query_one("SELECT to_regclass('schema_version') IS NOT NULL", &[]).await?.try_get(0)?;
    let found = match there {
        true => client.query_one("SELECT coalesce(max(version), 0) FROM schema_version", &[]).await?.try_get(0)?,
        false => 0,
    };
    let setting = async |name: &str| -> Result<String, tokio_postgres::Error> {
        client.query_one("SELECT setting FROM pg_settings WHERE name = $1", &[&name]).await?.try_get(0)
    };
    let now: String = client
        .query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text", &[])
        .await?
        .try_get(0)?;
    let behind_ms = now.parse().map_or(0, |theirs: i64| Timestamp::now().as_millisecond() - theirs);
    Ok(vec![
        store::verdict("Postgres", found, known),
        fsync(&setting("fsync").await?),
        synchronous_commit(&setting("synchronous_commit").await?),
        naptime(&setting("autovacuum_naptime").await?),
        clock("store clock", "Postgres", behind_ms / 1000),
    ])
}

fn fsync(value: &str) -> Finding {
    match value {
        "on" => Finding::ok("fsync", "on"),
        _ => Finding::fail("fsync", format!("{value}: a crash of the machine can destroy the store"), "set fsync = on"),
    }
}

fn synchronous_commit(value: &str) -> Finding {
    match value {
        "off" => Finding::fail(
            "synchronous_commit",
            "off: accepted tasks can be lost in a crash",
            "set synchronous_commit = on, at least for the user of tenure",
        ),
        value => Finding::ok("synchronous_commit", value),
    }
}

fn naptime(seconds: &str) -> Finding {
    let check = "autovacuum_naptime";
    match seconds.parse::<i64>() {
        Ok(found) if found > NAPTIME_SECONDS => Finding::warn(
            check,
            format!("{found} s: dead rows accumulate, and claims get slower under load"),
            format!("ALTER SYSTEM SET autovacuum_naptime = '{NAPTIME_SECONDS}s'; SELECT pg_reload_conf()"),
        ),
        _ => Finding::ok(check, format!("{seconds} s")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn settings_that_lose_work_fail_and_slow_ones_warn() {
        assert_eq!(fsync("on").status, Status::Ok);
        assert_eq!(fsync("off").status, Status::Fail);
        assert_eq!(synchronous_commit("remote_apply").status, Status::Ok);
        assert_eq!(synchronous_commit("off").status, Status::Fail);
        assert_eq!(naptime("60").status, Status::Warn);
        assert_eq!(naptime("1").status, Status::Ok);
    }
}
