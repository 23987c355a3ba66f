//! `tenure queue` and `tenure dead-letter`.

use serde_json::json;
use tenure_testkit::wait_until;

use crate::commands::kit::{SOON, Site, code};

#[tokio::test]
async fn a_queue_is_deleted_when_it_is_empty_and_somebody_says_yes() {
    let site = Site::new().await;
    let id = site.submit(&["etl", "echo"]).await;
    let not_empty = site.run(&["queue", "delete", "etl", "--yes", "--force"]).await;
    assert_eq!(code(&not_empty), 4, "{}", not_empty.stderr);
    assert!(not_empty.stderr.contains("the queue has tasks (1 ready)"), "{}", not_empty.stderr);
    site.ok(&["task", "cancel", &id]).await;
    let nobody_asked = site.run(&["queue", "delete", "etl"]).await;
    assert_eq!(code(&nobody_asked), 2);
    assert!(nobody_asked.stderr.contains("stdin is not a terminal"), "{}", nobody_asked.stderr);
    assert_eq!(site.ok(&["queue", "delete", "etl", "--yes"]).await, "Queue etl is deleted.\n");
    assert!(site.ok(&["queue", "list"]).await.starts_with("No queues."));
    assert_eq!(site.json(&["task", "show", &id]).await["queue"], "etl");
    site.ok(&["queue", "create", "etl"]).await;
    assert_eq!(site.json(&["queue", "delete", "etl", "-y"]).await, json!({"name": "etl", "deleted": true}));
}

#[tokio::test]
async fn a_queue_is_set_paused_and_resumed() {
    let site = Site::new().await;
    assert!(site.ok(&["queue", "list"]).await.starts_with("No queues."));
    let args = [
        "queue",
        "create",
        "etl",
        "--max-running",
        "3",
        "--rate",
        "5/10",
        "--fairness",
        "tag:team",
        "--lease-ttl",
        "30s",
    ];
    let set = site.json(&args).await;
    assert_eq!(
        set["limits"],
        json!({"max_running": 3, "rate": {"per_second": 5.0, "burst": 10.0}, "fairness_key": "tag:team"})
    );
    let table = site.ok(&["queue", "list"]).await;
    assert!(table.contains("3 running; 5/s, burst 10; fair by tag:team; lease 30s"), "{table}");
    assert_eq!(code(&site.run(&args).await), 4, "it exists");
    // Only what is named changes.
    let limits = set["limits"].clone();
    let set = site.json(&["queue", "set", "etl", "--no-dead-letter"]).await;
    assert_eq!((&set["limits"], &set["dead_letter"]), (&limits, &json!(false)));
    let set = site.json(&["queue", "set", "etl", "--rate", "none", "--fairness", "none", "--dead-letter"]).await;
    assert_eq!((&set["limits"], &set["dead_letter"]), (&json!({"max_running": 3}), &json!(true)));

    // A name that does not exist makes no queue, wherever it is written.
    for wrong in [
        &["queue", "set", "elt", "--max-running", "1"][..],
        &["queue", "pause", "elt"],
        &["queue", "delete", "elt", "--yes"],
        &["outbox", "list", "--queue", "elt"],
        &["queue", "show", "elt"],
        &["task", "list", "--queue", "elt"],
        &["dead-letter", "list", "--queue", "elt"],
        &["dead-letter", "redrive", "--queue", "elt", "--yes"],
    ] {
        let output = site.run(wrong).await;
        assert_eq!(code(&output), 3, "{wrong:?}");
        assert!(output.stderr.contains("no such queue; did you mean `etl`?"), "{}", output.stderr);
    }
    assert_eq!(site.json(&["queue", "list"]).await["items"].as_array().unwrap().len(), 1);
    assert_eq!(site.json(&["queue", "set", "new", "--create", "--max-running", "7"]).await["limits"]["max_running"], 7);

    assert_eq!(site.ok(&["queue", "pause", "etl"]).await, "Queue etl is paused; running tasks continue.\n");
    let id = site.submit(&["etl", "echo"]).await;
    let why = site.ok(&["task", "why", &id]).await;
    assert!(why.contains("queue_paused") && why.contains("try: tenure queue resume etl"), "{why}");
    assert_eq!(site.json(&["queue", "resume", "etl"]).await, json!({"name": "etl", "paused": false}));

    let bad = site.run(&["queue", "set", "etl", "--fairness", "moon"]).await;
    assert_eq!(code(&bad), 2);
    assert!(bad.stderr.contains("fairness_key"), "{}", bad.stderr);
    assert_eq!(code(&site.run(&["queue", "set", "etl", "--rate", "fast"]).await), 2);
}

#[tokio::test]
async fn dead_letters_are_listed_counted_and_released() {
    let site = Site::new().await;
    assert_eq!(site.ok(&["dead-letter", "list"]).await, "No dead letters.\n");
    let mut worker = site.worker(&["--queue", "q"]);
    worker.wait_for_stderr("worker started", SOON).await;
    for _ in 0..2 {
        let payload = r#"{"code": "BAD_ROW", "message": "row 7", "retryable": false, "times": 1}"#;
        assert_eq!(code(&site.run(&["task", "submit", "q", "fail", "--payload", payload, "--wait"]).await), 10);
    }
    let table = site.ok(&["dead-letter", "list", "--queue", "q"]).await;
    assert_eq!((table.lines().count(), table.matches("BAD_ROW: row 7").count()), (3, 2), "{table}");
    assert_eq!(site.json(&["dead-letter", "list", "--reason", "max_attempts"]).await["items"], json!([]));

    let nothing_named = site.run(&["dead-letter", "redrive", "--yes"]).await;
    assert_eq!(code(&nothing_named), 2);
    let nobody_asked = site.run(&["dead-letter", "redrive", "--queue", "q"]).await;
    assert_eq!(code(&nobody_asked), 2);
    assert!(nobody_asked.stderr.contains("--yes"), "{}", nobody_asked.stderr);
    let counted = site.ok(&["dead-letter", "redrive", "--error-code", "BAD_ROW", "--dry-run"]).await;
    assert_eq!(counted, "2 dead letters would be released.\n");
    assert_eq!(site.json(&["dead-letter", "list"]).await["items"].as_array().unwrap().len(), 2);

    let redrive = ["dead-letter", "redrive", "--queue", "q", "--yes", "--key", "r-1"];
    assert_eq!(site.json(&redrive).await["matched"], 2);
    // The same call again shows how far it is; the second attempt of each task succeeds.
    wait_until("the redrive is done", SOON, async || site.json(&redrive).await["state"] == "done").await;
    wait_until("the tasks succeed", SOON, async || {
        site.json(&["task", "list", "--state", "succeeded"]).await["items"].as_array().unwrap().len() == 2
    })
    .await;
    assert_eq!(site.ok(&["dead-letter", "list"]).await, "No dead letters.\n");
}
