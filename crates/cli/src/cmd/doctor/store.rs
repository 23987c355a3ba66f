//! The store, looked at without changing it.

use std::path::Path;

use jiff::Timestamp;
use tenure_config::{Config, StoreUrl};
use tenure_core::queue::Queue;
use tenure_engine::store::{self, Inspection, PostgresServer, SCHEMA, SharedSecret, StoreError};

use super::Finding;
use super::server::clock;
use crate::{store_id, token};

const CHECK: &str = "store";
const NAPTIME_SECONDS: i64 = 1;

/// What was found, and the queues of the store if it can be read.
pub async fn check(config: &Config) -> (Vec<Finding>, Vec<Queue>) {
    let (mut findings, found) = look(&config.store_url()).await;
    let Some(found) = found else { return (findings, Vec::new()) };
    findings.extend(shared_token(config, found.worker_token.as_ref()));
    findings.extend(identity(&config.data, &found));
    (findings, found.queues)
}

async fn look(url: &StoreUrl) -> (Vec<Finding>, Option<Inspection>) {
    let name = url.path().map_or_else(|| "Postgres".to_owned(), |path| path.display().to_string());
    match store::inspect(url.reveal()).await {
        Ok(None) => (vec![Finding::ok(CHECK, format!("{name} does not exist yet; the first start creates it"))], None),
        Ok(Some(found)) => (findings(&name, &found), Some(found)),
        Err(error) => (vec![unreadable(&name, &error)], None),
    }
}

/// Whether the database is the store that the data folder was used with.
fn identity(data: &Path, found: &Inspection) -> Option<Finding> {
    let check = "store identity";
    let recorded = store_id::recorded(data).ok().flatten().filter(|_| found.server.is_some())?;
    let path = store_id::path_in(data);
    Some(match found.store_id.as_ref() {
        Some(own) if *own == recorded => Finding::ok(check, format!("the store that {} records", path.display())),
        _ => Finding::fail(
            check,
            format!("the Postgres database is not the store that {} records", path.display()),
            "check the address of the store; if this one is right, remove that file",
        ),
    })
}

/// Whether this server accepts the same workers as the others on its store, if the configuration does not say which.
fn shared_token(config: &Config, shared: Option<&SharedSecret>) -> Option<Finding> {
    let check = "workers of all replicas";
    if config.auth().is_ok_and(|auth| auth.worker.is_configured()) {
        return None;
    }
    let (shared, path) = (shared?, token::path_in(&config.data));
    let own = std::fs::read_to_string(&path).ok();
    Some(match own.as_deref().map(str::trim) {
        Some(own) if own == shared.0 => Finding::ok(check, "this server and the others on its store share one token"),
        Some(_) => Finding::warn(
            check,
            format!("{} differs from the token of the other control planes", path.display()),
            "the next start of `tenure serve` replaces it; or set auth.worker_token_file to the same file on all",
        ),
        None => Finding::ok(check, "the next start takes the token of the other control planes"),
    })
}

fn findings(name: &str, found: &Inspection) -> Vec<Finding> {
    let mut store = schema(name, found.schema);
    if found.in_use {
        store.message.push_str(", and a server has it open");
    }
    let mut findings = vec![store];
    if let Some(server) = &found.server {
        findings.extend(settings(server));
    }
    findings
}

fn unreadable(name: &str, error: &StoreError) -> Finding {
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), causes);
    match error {
        StoreError::Unavailable { operation: "connect", .. } => {
            let fix = "check that Postgres is running, and the host, database, user and password in the address";
            Finding::fail(CHECK, format!("Postgres cannot be reached: {cause}"), fix)
        }
        StoreError::Failed { operation: "answer", .. } => {
            let fix = "check the permissions of the user and the Postgres log";
            Finding::fail(CHECK, format!("Postgres refused a query: {cause}"), fix)
        }
        StoreError::Damaged { what, .. } => {
            let fix = "stop the server and restore a backup: docs/operations/backup.md";
            Finding::fail(CHECK, format!("{name} is damaged: {what}"), fix)
        }
        _ => Finding::fail(
            CHECK,
            format!("{name} cannot be read: {cause}"),
            "check its permissions, or restore a backup",
        ),
    }
}

/// An error with its causes. Postgres names neither address nor password.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
    format!("{error}{source}")
}

/// What a schema version means for this binary.
fn schema(name: &str, found: i64) -> Finding {
    let version = format!("{name} has schema version {found}");
    match found {
        0 => Finding::ok(CHECK, format!("{name} is empty; the first start creates the tables")),
        _ if found > SCHEMA => Finding::fail(
            CHECK,
            format!("{version}, this binary knows versions up to {SCHEMA}"),
            "start a newer tenure, or restore a backup made before the upgrade",
        ),
        _ if found < SCHEMA => Finding::fail(
            CHECK,
            format!("{version}, from before the first release; this binary needs {SCHEMA}"),
            "start with an empty store",
        ),
        _ => Finding::ok(CHECK, version),
    }
}

fn settings(server: &PostgresServer) -> [Finding; 4] {
    let behind_ms = Timestamp::now().as_millisecond() - server.now.as_millis();
    [
        fsync(&server.fsync),
        synchronous_commit(&server.synchronous_commit),
        naptime(&server.autovacuum_naptime),
        clock("store clock", "Postgres", behind_ms / 1000),
    ]
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
            "off: tasks that were accepted can be lost in a crash",
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
    fn versions_are_compared() {
        assert_eq!(schema("s", 0).status, Status::Ok);
        assert_eq!(schema("s", SCHEMA).status, Status::Ok);
        assert_eq!(schema("s", SCHEMA - 1).status, Status::Fail);
        assert_eq!(schema("s", SCHEMA + 1).status, Status::Fail);
    }

    #[test]
    fn settings_that_lose_work_fail_and_slow_ones_warn() {
        assert_eq!(fsync("on").status, Status::Ok);
        assert_eq!(fsync("off").status, Status::Fail);
        assert_eq!(synchronous_commit("remote_apply").status, Status::Ok);
        assert_eq!(synchronous_commit("off").status, Status::Fail);
        assert_eq!(naptime("60").status, Status::Warn);
        assert_eq!(naptime("1").status, Status::Ok);
    }

    #[tokio::test]
    async fn a_store_is_looked_at_while_a_server_has_it_and_after() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tenure.db");
        let url = StoreUrl::sqlite(&path);
        let look = async || look(&url).await.0.remove(0);
        assert!(look().await.message.contains("does not exist yet"));
        let open = store::open(url.reveal(), Default::default()).await.unwrap();
        let finding = look().await;
        assert!(finding.status == Status::Ok && finding.message.ends_with("a server has it open"), "{finding:?}");
        drop(open);
        std::fs::write(&path, "this is no database at all, whatever its name says").unwrap();
        assert_eq!(look().await.status, Status::Fail);
    }
}
