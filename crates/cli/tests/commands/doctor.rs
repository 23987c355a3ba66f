//! `tenure doctor`

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tenure_testkit::{Output, Postgres};

use crate::kit::{Home, Site, code};

/// Status and message of one check.
fn finding(output: &Output, check: &str) -> (String, String) {
    let findings: Vec<Value> = serde_json::from_str(&output.stdout).expect("doctor prints JSON");
    let found = findings.iter().find(|finding| finding["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no {check} in {}", output.stdout));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("status"), text("message"))
}

#[tokio::test]
async fn a_machine_with_nothing_on_it_is_well() {
    let home = Home::new();
    let output = home.run(&["doctor"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(output.stdout.contains("[ok] config: no file, the defaults hold"), "{}", output.stdout);
    assert!(output.stdout.contains("[ok] store: "), "{}", output.stdout);
    assert!(!home.path().join(".tenure").exists(), "it changed something");
}

#[tokio::test]
async fn a_running_server_is_found_well() {
    let site = Site::new().await;
    let output = site.run(&["doctor", "--json"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    for check in
        ["config", "data folder", "disk space", "worker token", "store", "server", "version", "server clock", "API key"]
    {
        assert_eq!(finding(&output, check).0, "ok", "{check}");
    }
    assert!(finding(&output, "store").1.contains("a server has it open"));
}

#[tokio::test]
async fn what_is_wrong_fails_with_a_remedy() {
    let home = Home::new();
    let data = home.path().join(".tenure");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("worker-token"), "t").unwrap();
    std::fs::set_permissions(data.join("worker-token"), PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(data.join("tenure.db"), "this is no database at all, whatever its name says").unwrap();
    let args = ["doctor", "--server", "http://127.0.0.1:1", "--json"];
    let output = home.run(&args).await;
    assert_eq!(code(&output), 1);
    for check in ["worker token", "store", "server"] {
        assert_eq!(finding(&output, check).0, "fail", "{check}");
    }
    let text = home.run(&["doctor"]).await;
    assert!(
        text.stdout.contains("[fail] worker token: others can read") && text.stdout.contains("\n      fix: chmod 600"),
        "{}",
        text.stdout
    );

    std::fs::write(home.path().join("tenure.yaml"), "sevrer: {}\n").unwrap();
    let output = home.run(&args).await;
    assert_eq!(code(&output), 1);
    assert!(finding(&output, "config").1.contains("did you mean `server`?"), "{output:?}");
}

#[tokio::test]
async fn postgres_is_looked_at_and_left_alone() {
    let home = Home::new();
    let database = Postgres::shared().await.database().await;
    let output = home.run(&["doctor", "--store", database.url(), "--json"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(finding(&output, "store").1.contains("is empty"), "{output:?}");
    for check in ["fsync", "synchronous_commit", "store clock"] {
        assert_eq!(finding(&output, check).0, "ok", "{check}");
    }
    finding(&output, "autovacuum_naptime");
    let again = home.run(&["doctor", "--store", database.url(), "--json"]).await;
    assert!(finding(&again, "store").1.contains("is empty"), "it made tables: {again:?}");
}

#[tokio::test]
async fn a_postgres_that_is_not_there_fails_without_its_password() {
    let home = Home::new();
    let output = home.run(&["doctor", "--store", "postgres://u:hunter2@127.0.0.1:1/d", "--json"]).await;
    assert_eq!(code(&output), 1);
    assert_eq!(finding(&output, "store").0, "fail");
    assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
}
