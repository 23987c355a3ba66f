//! `tenure task`, on a server with a worker and on one without.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;
use tenure_testkit::{Child, wait_until};

use crate::commands::kit::{Home, SOON, Site, code, finish};

#[tokio::test]
async fn a_task_is_submitted_and_looked_at() {
    let site = Site::new().await;
    let id = site
        .submit(&[
            "etl",
            "extract",
            "--payload",
            r#"{"day": "2025-01-15"}"#,
            "--priority",
            "2",
            "--key",
            "k-1",
            "--max-attempts",
            "5",
            "--tag",
            "team=etl",
            "--lease-ttl",
            "30s",
            "--timeout",
            "10m",
        ])
        .await;
    let shown = site.json(&["task", "show", &id]).await;
    assert_eq!(site.json(&["task", "show", &id[..8]]).await, shown, "the beginning of an id is enough");
    assert_eq!(code(&site.run(&["task", "show", "00000000"]).await), 3);
    assert_eq!((&shown["state"], &shown["priority"], &shown["max_attempts"]), (&json!("Ready"), &json!(2), &json!(5)));
    assert_eq!((&shown["tags"], &shown["payload"]), (&json!({"team": "etl"}), &json!({"day": "2025-01-15"})));

    let card = site.ok(&["task", "show", &id]).await;
    for part in [&format!("Task {id}"), "state     Ready", "etl, priority 2", "team=etl", "2025-01-15"] {
        assert!(card.contains(part), "{card}");
    }
    let table = site.ok(&["task", "list", "--queue", "etl", "--state", "ready", "--tag", "team=etl"]).await;
    assert!(table.starts_with("TASK ") && table.contains(&id), "{table}");
    assert!(!table.contains('\x1b'), "colours off a terminal: {table:?}");
    assert_eq!(site.ok(&["task", "list", "--state", "running"]).await, "No tasks.\n");
    let why = site.ok(&["task", "why", &id]).await;
    assert!(why.contains("no_worker") && why.contains("try: tenure worker --queue etl"), "{why}");
    let attempts = site.ok(&["task", "attempts", &id]).await;
    assert!(attempts.starts_with("No attempt yet"), "{attempts}");

    let again = site.run(&["task", "submit", "etl", "extract", "--key", "k-1"]).await;
    assert_eq!(code(&again), 4, "{again:?}");
    assert!(again.stderr.contains("idempotency_conflict"), "{}", again.stderr);
}

#[tokio::test]
async fn many_tasks_come_from_a_file_and_are_listed_page_by_page() {
    let site = Site::new().await;
    let tasks: Vec<_> = (0..1500).map(|n| json!({"queue": "bulk", "operator": "echo", "payload": n})).collect();
    let file = site.home.path().join("tasks.json");
    std::fs::write(&file, serde_json::to_string(&tasks).unwrap()).unwrap();
    let file = file.display().to_string();
    assert_eq!(site.ok(&["task", "submit", "--file", &file]).await, "Submitted 1500 tasks\n");

    let some = site.run(&["task", "list"]).await;
    assert_eq!(some.stdout.lines().count(), 101);
    assert!(some.stderr.contains("There are more"), "{}", some.stderr);
    let page = site.json(&["task", "list", "--limit", "1200"]).await;
    assert_eq!(page["items"].as_array().unwrap().len(), 1200);
    assert!(page["next_cursor"].is_string());
    let all = site.json(&["task", "list", "--all", "--queue", "bulk"]).await;
    assert_eq!((all["items"].as_array().unwrap().len(), &all["next_cursor"]), (1500, &json!(null)));

    std::fs::write(&file, r#"[{"queue":"bulk","operator":"echo"},{"queue":"","operator":"echo"}]"#).unwrap();
    let bad = site.run(&["task", "submit", "--file", &file]).await;
    assert_eq!(code(&bad), 2);
    assert!(bad.stderr.contains("tasks[1].queue"), "{}", bad.stderr);
    std::fs::write(&file, "[{").unwrap();
    let broken = site.run(&["task", "submit", "--file", &file]).await;
    assert_eq!(code(&broken), 2);
    assert!(broken.stderr.contains("is not a JSON array of tasks"), "{}", broken.stderr);
}

#[tokio::test]
async fn waiting_for_a_task_says_how_it_ended() {
    let site = Site::new().await;
    let mut worker = site.worker(&["--queue", "q", "--name", "w-1"]);
    worker.wait_for_stderr("worker started", SOON).await;
    let wait = async |args: &[&str]| site.run(&[&["task", "submit", "q"], args, &["--wait"]].concat()).await;

    let good = wait(&["echo", "--payload", r#"{"a": 1}"#]).await;
    assert_eq!(code(&good), 0, "{good:?}");
    assert_eq!(good.stdout, "{\"a\": 1}\n", "the result alone");
    assert!(good.stderr.starts_with("Submitted task ") && good.stderr.contains("Succeeded"), "{}", good.stderr);

    let payload = r#"{"code": "BAD_ROW", "message": "row 7", "retryable": false}"#;
    let failed = wait(&["fail", "--payload", payload]).await;
    assert_eq!(code(&failed), 10, "{failed:?}");
    assert!(failed.stderr.contains("BAD_ROW: row 7") && failed.stderr.contains("in the dead letters"), "{failed:?}");
    assert_eq!(failed.stdout, "");

    let quiet = wait(&["echo", "--payload", "7", "--json"]).await;
    let task: serde_json::Value = serde_json::from_str(&quiet.stdout).unwrap();
    assert_eq!((&task["state"], &task["result"]), (&json!("Succeeded"), &json!(7)));
}

#[tokio::test]
async fn a_running_task_is_watched_canceled_and_retried() {
    let site = Site::new().await;
    site.ok(&["queue", "create", "q", "--lease-ttl", "20s", "--heartbeat", "1s"]).await;
    let mut worker = site.worker(&["--queue", "q", "--name", "w-1"]);
    worker.wait_for_stderr("worker started", SOON).await;
    let id = site.submit(&["q", "sleep", "--payload", r#"{"ms": 60000}"#]).await;
    let mut watcher = Child::spawn(site.command(&["task", "watch", &id]));
    watcher.wait_for_stderr("Running  attempt 1 of 3 on w-1", SOON).await;
    watcher.wait_for_stderr("%  slept", SOON).await;
    let canceled = site.ok(&["task", "cancel", &id, "--reason", "wrong day"]).await;
    assert!(canceled.contains("was asked to stop"), "{canceled}");
    assert_eq!(watcher.wait(SOON).await.code(), Some(11));
    assert!(watcher.output().stderr.contains("Canceled  wrong day"), "{:?}", watcher.output());
    let attempts = site.ok(&["task", "attempts", &id]).await;
    assert!(attempts.contains("w-1") && attempts.contains("CANCELLED"), "{attempts}");

    let again = site.ok(&["task", "retry", &id]).await;
    assert!(again.contains("again"), "{again}");
    wait_until("the task runs again", SOON, async || site.json(&["task", "show", &id]).await["state"] == "Running")
        .await;
    let at_once = site.ok(&["task", "cancel", &id, "--immediate"]).await;
    assert_eq!(at_once, format!("Task {id} is canceled.\n"));
    let twice = site.run(&["task", "retry", &id]).await;
    assert_eq!(code(&twice), 0);
    let running = site.run(&["task", "retry", &id]).await;
    assert_eq!(code(&running), 4, "{running:?}");
    assert!(running.stderr.contains("task_not_retryable"), "{}", running.stderr);
}

#[tokio::test]
async fn a_payload_comes_from_a_file_or_from_standard_input() {
    let site = Site::new().await;
    let file = site.home.path().join("payload.json");
    std::fs::write(&file, "[1, 2]\n").unwrap();
    let id = site.submit(&["q", "echo", "--payload", &format!("@{}", file.display())]).await;
    assert_eq!(site.json(&["task", "show", &id]).await["payload"], json!([1, 2]));

    let mut command = site.command(&["task", "submit", "q", "echo", "--payload", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"from\": \"stdin\"}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let submitted: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = site.json(&["task", "show", submitted["task_id"].as_str().unwrap()]).await;
    assert_eq!(shown["payload"], json!({"from": "stdin"}));
}

#[tokio::test]
async fn wrong_input_is_refused_with_the_right_code() {
    let site = Site::new().await;
    let unknown = "018c385a-9fb1-9509-0e89-33fe3b7b1aa9";
    let secure = site.server.url().replace("http://", "https://");
    for (args, expected, part) in [
        (&["task", "show", unknown][..], 3, "task_not_found"),
        (&["task", "watch", unknown], 3, "task_not_found"),
        (&["task", "cancel", unknown], 3, "task_not_found"),
        (&["task", "show", "no id"], 2, "is neither the id of a task"),
        (&["task", "submit", "q"], 2, "required"),
        (&["task", "submit", "q", "echo", "--payload", "{a:1}"], 2, "--payload is not JSON"),
        (&["task", "submit", "q", "echo", "--payload", "@/nowhere"], 2, "could not be read"),
        (&["task", "submit", "q", "echo", "--priority", "12"], 2, "--priority"),
        (&["task", "submit", "q", "echo", "--delay", "soon"], 2, "write it as"),
        (&["task", "submit", "q", "echo", "--run-at", "tomorrow"], 2, "looks like"),
        (&["task", "submit", "q", "echo", "--tag", "team"], 2, "write it as team=etl"),
        (&["task", "submit", "q", "echo", "--lease-ttl", "0s"], 2, "lease_ttl_seconds"),
        (&["task", "list", "--state", "lost"], 2, "possible values"),
        (&["task", "list", "--server", "127.0.0.1:1"], 2, "is not a server address: write http://127.0.0.1:1 or"),
        (&["task", "list", "--server", &secure], 5, "answers without TLS: use http:// in --server"),
        (&["task", "submit", "q", "echo", "--timeout", "0s"], 2, "must be longer than 0"),
        (&["task", "list", "--api-key", "a", "--api-key-file", "b"], 2, "cannot be used with"),
        (&["task", "list", "--api-key-file", "/nowhere"], 2, "could not be read"),
        (&["task"], 2, "Usage"),
        (&["tsak"], 2, "similar"),
    ] {
        let output = site.run(args).await;
        assert_eq!(code(&output), expected, "{args:?}: {output:?}");
        assert!(output.stderr.contains(part), "{args:?}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{args:?}");
    }
    let not_found = site.run(&["task", "show", unknown]).await;
    assert!(not_found.stderr.contains("request: req_"), "{}", not_found.stderr);
    // Who asks for JSON gets errors as JSON too.
    for (args, exit, message) in [
        (&["task", "show", unknown, "--json"][..], 3, "no such task"),
        (&["task", "submit", "q", "--json"], 2, "required"),
        (&["task", "list", "--server", "http://127.0.0.1:1", "--json"], 5, "no answer"),
    ] {
        let output = site.run(args).await;
        let error: serde_json::Value = serde_json::from_str(&output.stderr).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!((code(&output), &error["exit_code"]), (exit, &json!(exit)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        assert_eq!(output.stdout, "");
    }
    let not_found = site.run(&["task", "show", unknown, "--json"]).await;
    let error: serde_json::Value = serde_json::from_str(&not_found.stderr).unwrap();
    assert_eq!(
        (&error["error"], &error["code"], &error["status"]),
        (&json!("task_not_found"), &json!("NOT_FOUND"), &json!(404))
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_has_a_code_of_its_own() {
    let home = Home::new();
    let output = home.run(&["task", "list", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(code(&output), 5, "{output:?}");
    assert!(
        output.stderr.contains("no answer from the server") && output.stderr.contains("hint: "),
        "{}",
        output.stderr
    );
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_failure() {
    let site = Site::new().await;
    let tasks: Vec<_> = (0..1000).map(|n| json!({"queue": "q", "operator": "echo", "payload": n})).collect();
    let file = site.home.path().join("tasks.json");
    std::fs::write(&file, serde_json::to_string(&tasks).unwrap()).unwrap();
    site.ok(&["task", "submit", "--file", &file.display().to_string()]).await;
    let mut command = site.command(&["task", "list", "--all"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[tokio::test]
async fn help_and_version_are_there_without_a_server() {
    let home = Home::new();
    for args in
        [&["--help"][..], &["task", "submit", "--help"], &["demo", "--help"], &["completions", "bash"], &["--version"]]
    {
        let output = home.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}");
        assert!(output.stdout.contains("tenure"), "{args:?}: {}", output.stdout);
    }
    let bare = finish(home.command(&[])).await;
    assert_eq!(code(&bare), 2);
    assert!(bare.stderr.contains("Exit codes:"), "{}", bare.stderr);
}
