//! `tenure demo`: the promise of the first page, kept.

use std::time::{Duration, Instant};

use tenure_testkit::{Child, Output, Postgres, Signal, wait_until};

use crate::commands::kit::{Home, SOON, providers};

const MINUTE: Duration = Duration::from_secs(60);

async fn demo(home: &Home, args: &[&str]) -> Output {
    let started = Instant::now();
    let mut command = home.command(&[&["demo"], args].concat());
    // Where it makes its folder.
    command.env("TMPDIR", home.path());
    let mut child = Child::spawn(command);
    child.wait(2 * MINUTE).await;
    let output = child.output();
    assert!(output.status.is_some_and(|status| status.success()), "{output:?}");
    assert!(started.elapsed() < MINUTE, "it took {:?}", started.elapsed());
    output
}

fn leftovers(home: &Home) -> usize {
    std::fs::read_dir(home.path()).expect("the home is there").count()
}

#[tokio::test]
async fn every_task_ends_as_it_should_and_nothing_is_left() {
    let home = Home::new();
    let output = demo(&home, &[]).await;
    for part in [
        "worker-b was killed with SIGKILL while it held",
        "✓ 200 of 200 tasks ended as expected",
        "HEARTBEAT_TIMEOUT",
        "✓ the poison task is the only dead letter",
        "tenure up",
    ] {
        assert!(output.stdout.contains(part), "no {part:?} in {}", output.stdout);
    }
    assert!(!output.stdout.contains('\x1b'), "colours off a terminal");
    assert_eq!(leftovers(&home), 0);
}

#[tokio::test]
async fn a_dag_survives_a_killed_worker_an_invalidation_and_a_change_of_its_version() {
    let home = Home::new();
    let mut command = home.command(&["demo", "dag"]);
    command.env("TMPDIR", home.path());
    let mut child = Child::spawn(command);
    child.wait(5 * MINUTE).await;
    let output = child.output();
    assert!(output.status.is_some_and(|status| status.success()), "{output:?}");
    for part in [
        "was killed with SIGKILL while it held 400-499",
        "●  backfill        manual        4 done  1 waiting",
        "power and sum made 0-99 again",
        "version 1 Active, version 2 Ready",
        "cut over to version 2: the sums are of cubes",
        "rolled back: the sums are of squares again",
        "version 1 Active, version 2 RolledBack",
        "HEARTBEAT_TIMEOUT",
        " 328350            1",
        "✓ version 1 is active, version 2 was rolled back",
    ] {
        assert!(output.stdout.contains(part), "no {part:?} in {}", output.stdout);
    }
    assert!(!output.stdout.contains('\x1b') && !output.stdout.contains('✗'), "{}", output.stdout);
    assert_eq!(leftovers(&home), 0);
}

#[tokio::test]
async fn it_runs_on_postgres_too() {
    let home = Home::new();
    let database = Postgres::shared().await.database().await;
    let output = demo(&home, &["--store", database.url(), "--tasks", "80"]).await;
    assert!(output.stdout.contains("✓ 80 of 80 tasks ended as expected"), "{}", output.stdout);
}

#[tokio::test]
async fn an_interrupt_leaves_nothing_behind() {
    let home = Home::new();
    let mut command = home.command(&["demo"]);
    command.env("TMPDIR", home.path());
    let mut child = Child::spawn(command);
    let line = child.wait_for_stdout("started worker-a", SOON).await;
    child.signal(Signal::SIGINT);
    assert_eq!(child.wait(SOON).await.code(), Some(130));
    assert_eq!(leftovers(&home), 0);
    let pids: Vec<_> = line.split("(process ").skip(1).filter_map(|part| part.split(')').next()).collect();
    assert_eq!(pids.len(), 2, "{line}");
    wait_until("the workers are gone", SOON, async || pids.iter().all(|pid| !runs(pid))).await;
}

/// Whether a process is there and is more than a record of its end.
fn runs(pid: &str) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a_number_that_shows_nothing_is_refused() {
    let output = Home::new().run(&["demo", "--tasks", "5"]).await;
    assert_eq!(output.status.and_then(|status| status.code()), Some(2));
    assert!(output.stderr.contains("a number from 50 to 1000"), "{}", output.stderr);
}

#[tokio::test]
async fn attacks_in_sandboxes_are_refused_beside_honest_work() {
    if !providers("attacks_in_sandboxes_are_refused_beside_honest_work").await.contains(&"namespace") {
        return;
    }
    let home = Home::new();
    let mut command = home.command(&["demo", "sandbox"]);
    command.env("TMPDIR", home.path());
    let mut child = Child::spawn(command);
    child.wait(2 * MINUTE).await;
    let output = child.output();
    assert!(output.status.is_some_and(|status| status.success()), "{output:?}");
    for name in ["fork bomb", "memory hog", "file escape", "metadata address", "endless output", "daemon"] {
        assert!(output.stdout.contains(&format!("✓ {name}: ")), "no {name:?} in {}", output.stdout);
    }
    assert!(output.stdout.contains("✓ 6 of 6 attacks were refused"), "{}", output.stdout);
    wait_until("nothing is left", SOON, async || only_data(&home)).await;
}

/// Whether only the images' folder is left in the home.
fn only_data(home: &Home) -> bool {
    std::fs::read_dir(home.path()).expect("the home is there").flatten().all(|entry| entry.file_name() == ".tenure")
}
