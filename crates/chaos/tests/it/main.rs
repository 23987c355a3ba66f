//! The program `tenure-chaos` by its command line. Runs under faults are for `scripts/chaos`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

fn chaos(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure-chaos")).args(args).output().unwrap()
}

fn plan(seed: &str) -> String {
    let output =
        chaos(&["--dry-run", "--store", "postgres", "--transport", "redis", "--seconds", "60", "--seed", seed]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_seed_repeats_its_plan() {
    assert_eq!(plan("7"), plan("7"));
    assert_ne!(plan("7"), plan("8"));
}

#[test]
fn sandboxes_have_plans_of_their_own() {
    let plan = |seed: &str| {
        let output = chaos(&["--dry-run", "--sandboxes", "--store", "postgres", "--replicas", "3", "--seed", seed]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(plan("7"), plan("7"));
    assert!(plan("7").contains("ServersToWorker") || plan("7").contains("WorkerToServers"), "{}", plan("7"));
    let output = chaos(&["--sandboxes", "--transport", "redis"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn dags_and_sandboxes_are_runs_of_their_own() {
    let output = chaos(&["--dry-run", "--dags", "--store", "postgres", "--transport", "redis", "--seed", "7"]);
    assert!(output.status.success(), "{output:?}");
    let output = chaos(&["--dry-run", "--dags", "--sandboxes"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn a_run_that_cannot_be_made_ends_with_2() {
    let output = chaos(&["--store", "sqlite", "--replicas", "2"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--replicas needs --store postgres"), "{output:?}");
}
