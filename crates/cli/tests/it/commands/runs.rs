//! `tenure run`, with a worker and without.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value, json};
use tenure_testkit::wait_until;

use crate::commands::kit::{SOON, Site, code};

const FILE: &str = "\
run_key: daily-1
labels: {team: etl}
tasks:
  - key: extract
    queue: etl
    operator: echo
    payload: {rows: [1, 2]}
  - key: load
    queue: etl
    operator: echo
    depends_on: [extract]
    payload: {got: {$from: extract, path: /rows}}
  - key: report
    queue: etl
    operator: echo
    depends_on: [load, extract]
";

fn write(site: &Site, name: &str, text: &str) -> String {
    let file = site.home.path().join(name);
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

async fn submitted(site: &Site, text: &str) -> String {
    let file = write(site, "run.yaml", text);
    site.json(&["run", "submit", &file]).await["run_id"].as_str().unwrap().to_owned()
}

fn failing() -> String {
    json!({"tasks": [
        {"key": "first", "queue": "etl", "operator": "echo"},
        {"key": "bad", "queue": "etl", "operator": "fail", "depends_on": ["first"], "max_attempts": 1},
        {"key": "last", "queue": "etl", "operator": "echo", "depends_on": ["bad"]}]})
    .to_string()
}

#[tokio::test]
async fn a_run_is_submitted_shown_and_listed() {
    let site = Site::new().await;
    let file = write(&site, "run.yaml", FILE);
    let said = site.ok(&["run", "submit", &file]).await;
    assert!(said.starts_with("Submitted run run_") && said.ends_with(" of 3 tasks: Running\n"), "{said}");
    let again = site.ok(&["run", "submit", &file]).await;
    assert!(again.contains("already exists with this key"), "{again}");
    let id = said.split_whitespace().nth(2).unwrap().to_owned();

    let shown = site.ok(&["run", "show", &id]).await;
    for part in [
        &format!("Run {id}"),
        "key      daily-1",
        "state    Running",
        "3 tasks: 1 ready, 2 blocked",
        "labels   team=etl",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let tree: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("extract")).map(str::trim_end).collect();
    assert!(tree[0].contains("Ready") && tree[1].starts_with("└─ load"), "{shown}");
    assert!(tree[2].starts_with("   └─ report") && tree[2].ends_with("also after extract"), "{shown}");
    assert!(!shown.contains('\x1b'), "colours off a terminal: {shown:?}");
    let value = site.json(&["run", "show", &id]).await;
    assert_eq!((&value["run_id"], value["tasks"].as_array().unwrap().len()), (&json!(id), 3));
    site.ok(&["task", "submit", "etl", "echo"]).await;
    for (filters, count) in [(&["--run", &id[..]][..], 3), (&["--after", "1h"], 4), (&["--before", "1h"], 0)] {
        let found = site.json(&[&["task", "list"], filters].concat()).await;
        assert_eq!(found["items"].as_array().unwrap().len(), count, "{filters:?}");
    }

    let table = site.ok(&["run", "list", "--state", "running", "--label", "team=etl"]).await;
    assert!(table.starts_with("RUN ") && table.contains(&id) && table.contains("0/3"), "{table}");
    assert_eq!(site.ok(&["run", "list", "--state", "failed"]).await, "No runs.\n");
    assert_eq!(site.json(&["run", "list", "--run-key", "daily-1"]).await["items"][0]["run_id"], json!(id));
    assert_eq!(site.ok(&["run", "list", "--after", "2099-01-01T00:00:00Z"]).await, "No runs.\n");

    let task = value["tasks"][1]["task_id"].as_str().unwrap().to_owned();
    let why = site.ok(&["task", "why", &task]).await;
    assert!(why.contains("blocked_on_dependencies") && why.contains("extract (Ready)"), "{why}");
    assert!(site.ok(&["task", "list", "--state", "blocked"]).await.contains("Blocked"));
}

#[tokio::test]
async fn a_run_comes_from_standard_input_and_flags_add_to_it() {
    let site = Site::new().await;
    let mut command = site.command(&["run", "submit", "-", "--run-key", "other", "--label", "by=me", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(FILE.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&run["run_key"], &run["labels"]), (&json!("other"), &json!({"team": "etl", "by": "me"})));
}

#[tokio::test]
async fn a_bad_run_is_refused_with_its_entry_and_field() {
    let site = Site::new().await;
    for (text, says) in [
        ("tasks: [{key: a, queue: q, operator: op, depends_on: [b]}]", "tasks[0].depends_on[0]"),
        ("tasks: [{key: a, queue: q, operator: op, depends_on: [a]}]", "cycle"),
        ("tasks: []", "1 to 10000"),
        ("tasks: 5", "is not a valid run file"),
        ("{\"tasks\":", "is not a valid run file"),
    ] {
        let file = write(&site, "bad.yaml", text);
        let output = site.run(&["run", "submit", &file]).await;
        assert_eq!(code(&output), 2, "{text}: {output:?}");
        assert!(output.stderr.contains(says), "{text}: {}", output.stderr);
    }
    let missing = site.run(&["run", "submit", "nowhere.yaml"]).await;
    assert!(code(&missing) == 2 && missing.stderr.contains("nowhere.yaml could not be read"), "{missing:?}");
    let unknown = site.run(&["run", "show", "run_01HGW5N7XHJM4GX29KZRXQP6N9"]).await;
    assert!(code(&unknown) == 3 && unknown.stderr.contains("run_not_found"), "{unknown:?}");
    let file = write(&site, "run.yaml", FILE);
    site.ok(&["run", "submit", &file]).await;
    let other = write(&site, "other.yaml", &FILE.replace("rows: [1, 2]", "rows: [3]"));
    let conflict = site.run(&["run", "submit", &other]).await;
    assert!(code(&conflict) == 4 && conflict.stderr.contains("run_key_conflict"), "{conflict:?}");
}

#[tokio::test]
async fn a_run_is_followed_to_its_end() {
    let site = Site::new().await;
    let file = write(&site, "run.yaml", FILE);
    let worker = site.worker(&["--queue", "etl"]);
    let output = site.run(&["run", "submit", &file, "--wait"]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    for part in ["extract  Succeeded", "load  Succeeded", "report  Succeeded"] {
        assert!(output.stderr.contains(part), "{part} in\n{}", output.stderr);
    }
    assert!(output.stdout.ends_with("run Succeeded  3 tasks: 3 succeeded\n"), "{}", output.stdout);
    assert_eq!(output.stdout.lines().count(), 1, "the end alone: {}", output.stdout);
    let id = output.stderr.split_whitespace().find(|word| word.starts_with("run_")).unwrap().to_owned();
    let load = &site.json(&["run", "show", &id]).await["tasks"][1];
    let task = site.json(&["task", "show", load["task_id"].as_str().unwrap()]).await;
    assert_eq!(task["payload"], json!({"got": [1, 2]}));
    // One that has ended is shown and left.
    let watched = site.ok(&["run", "watch", &id]).await;
    assert!(watched.contains("run Succeeded"), "{watched}");
    drop(worker);
}

#[tokio::test]
async fn a_run_that_failed_is_repeated_from_there() {
    let site = Site::new().await;
    let worker = site.worker(&["--queue", "etl"]);
    let file = write(&site, "run.json", &failing());
    let output = site.run(&["run", "submit", &file, "--wait"]).await;
    assert_eq!(code(&output), 10, "{output:?}");
    assert!(output.stderr.contains("bad  Failed") && output.stderr.contains("last  Skipped"), "{}", output.stderr);
    let id = output.stderr.split_whitespace().find(|word| word.starts_with("run_")).unwrap().to_owned();
    drop(worker);

    let said = site.ok(&["run", "rerun", &id, "--run-key", "again"]).await;
    assert!(said.contains("of 3 tasks: Running; 1 carried over"), "{said}");
    let new = said.split_whitespace().find(|word| word.starts_with("run_")).unwrap().to_owned();
    let shown = site.ok(&["run", "show", &new]).await;
    assert!(shown.contains(&format!("repeats  {id}")), "{shown}");

    let cancelled = site.ok(&["run", "cancel", &new, "--reason", "not today"]).await;
    assert!(cancelled.contains("Canceled"), "{cancelled}");
    let watched = site.run(&["run", "watch", &new, "--json"]).await;
    assert_eq!(code(&watched), 11, "{watched:?}");
    let last: Value = serde_json::from_str(watched.stdout.lines().last().unwrap()).unwrap();
    assert_eq!((&last["state"], &last["cancel_reason"]), (&json!("Canceled"), &json!("not today")));
}

#[tokio::test]
async fn what_cannot_be_done_to_a_run_is_said() {
    let site = Site::new().await;
    let id = submitted(&site, FILE).await;
    let early = site.run(&["run", "rerun", &id]).await;
    assert!(code(&early) == 4 && early.stderr.contains("run_not_rerunnable"), "{early:?}");
    let worker = site.worker(&["--queue", "etl"]);
    wait_until("the run has ended", SOON, async || site.json(&["run", "show", &id]).await["state"] == "Succeeded")
        .await;
    drop(worker);
    let late = site.run(&["run", "cancel", &id]).await;
    assert!(code(&late) == 4 && late.stderr.contains("run_already_terminal"), "{late:?}");
}

#[tokio::test]
async fn help_shows_how_a_run_is_written() {
    let site = Site::new().await;
    let help = site.ok(&["run", "submit", "--help"]).await;
    for part in ["FILE", "--run-key", "depends_on: [extract]", "$from: extract"] {
        assert!(help.contains(part), "{help}");
    }
    let overview = site.ok(&["run", "--help"]).await;
    for command in ["submit", "list", "show", "watch", "cancel", "rerun"] {
        assert!(overview.contains(command), "{overview}");
    }
}

#[tokio::test]
async fn a_file_that_is_no_run_is_refused_with_its_place() {
    let site = Site::new().await;
    let refused = async |text: &str, said: &str| {
        let file = write(&site, "wrong.yaml", text);
        let output = site.run(&["run", "submit", &file]).await;
        assert_eq!(code(&output), 2, "{text}: {output:?}");
        assert!(output.stderr.contains(said), "{text}: {output:?}");
    };
    let task = |more: &str| format!("tasks:\n  - {{key: a, queue: q, operator: o{more}}}\n");
    refused(&task(", depend_on: [b]"), "tasks[0].depend_on: unknown field `depend_on`; did you mean `depends_on`?")
        .await;
    refused(&task(", timeout_ms: long"), "tasks[0].timeout_ms: invalid type").await;
    refused(&task(", key: b"), "duplicate mapping key: key at line 2").await;
    refused(&task(", depends_on: [a]"), "these tasks depend on each other in a cycle: a → a").await;
    refused("tasks: [", "at line 1").await;
    let many: String = (0..10_001).map(|n| format!("  - {{key: k{n}, queue: q, operator: o}}\n")).collect();
    refused(&format!("tasks:\n{many}"), "a run must have 1 to 10000 tasks, not 10001").await;
    let output = site.run(&["run", "submit", "/nowhere.yaml"]).await;
    assert_eq!((code(&output), output.stderr.contains("/nowhere.yaml could not be read")), (2, true), "{output:?}");
    assert_eq!(site.json(&["run", "list"]).await["items"], json!([]), "something was submitted");
}
