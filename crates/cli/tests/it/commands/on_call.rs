//! What somebody on call looks at: logs, workers, redrives, and why nothing moves.

use serde_json::{Value, json};
use tenure_testkit::{Child, Port, Signal, wait_until};

use crate::commands::kit::{SOON, Site, code};

#[tokio::test]
async fn logs_are_followed_until_the_task_ends() {
    let site = Site::new().await;
    let id = site.submit(&["q", "talk", "--max-attempts", "2", "--backoff", "0s"]).await;
    let none = site.run(&["task", "logs", &id]).await;
    assert_eq!((code(&none), none.stdout.as_str()), (0, ""), "{none:?}");
    assert!(none.stderr.starts_with("No logs."), "{}", none.stderr);

    let mut follower = Child::spawn(site.command(&["task", "logs", "-f", &id]));
    let talk = "talk=echo one; echo two >&2; test \"$TENURE_ATTEMPT\" = 2";
    let mut worker = site.worker(&["--queue", "q", "--operator", talk]);
    assert_eq!(follower.wait(SOON).await.code(), Some(0));
    let followed = follower.output();
    let mut lines: Vec<&str> = followed.stdout.lines().collect();
    // Lines of two streams have no order between them.
    lines.sort_unstable();
    assert_eq!(lines, ["one", "one", "two", "two"], "{followed:?}");
    assert!(followed.stderr.contains("-- attempt 2 --"), "{}", followed.stderr);

    let second = site.run(&["task", "logs", &id, "--attempt", "2", "--json"]).await;
    let lines: Vec<Value> = second.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut streams: Vec<Value> =
        lines.iter().map(|line| json!([line["attempt"], line["stream"], line["text"]])).collect();
    streams.sort_by_key(ToString::to_string);
    assert_eq!(json!(streams), json!([[2, "stderr", "two"], [2, "stdout", "one"]]));
    let timed = site.ok(&["task", "logs", &id, "--attempt", "1", "-t"]).await;
    assert!(timed.lines().all(|line| line.starts_with("20") && line.contains("Z  ")), "{timed}");

    // One line for the start and one for the end of each attempt, with its ids.
    worker.signal(Signal::SIGTERM);
    worker.wait(SOON).await;
    let log = worker.output().stderr;
    for (part, count) in [("attempt started", 2), ("attempt failed", 1), ("attempt succeeded", 1)] {
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(lines.len(), count, "{part}: {log}");
        assert!(lines.iter().all(|line| line.contains(&id) && line.contains("attempt.number")), "{lines:?}");
    }
}

#[tokio::test]
async fn a_worker_is_listed_drained_and_undrained() {
    let site = Site::new().await;
    assert!(site.ok(&["worker", "list"]).await.starts_with("No workers."));
    let _worker = site.worker(&["--queue", "q", "--name", "w-1", "--concurrency", "3", "--operator", "wait=sleep 600"]);
    let id = site.submit(&["q", "wait"]).await;
    wait_until("the task runs", SOON, async || site.json(&["task", "show", &id]).await["state"] == "Running").await;
    let listed = wait_until("the worker is known with what it holds", SOON, async || {
        let listed = site.ok(&["worker", "list"]).await;
        listed.contains("1/3").then_some(listed)
    })
    .await;
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..6], ["w-1", "online", "pull", "q", "1/3", "-"], "{listed}");
    let shown = site.ok(&["worker", "show", "w-1"]).await;
    for part in ["Worker w-1", "echo, fail, sleep, wait", "1/3", "in step with the server", &id] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(code(&site.run(&["worker", "show", "nobody"]).await), 3);

    let busy = site.run(&["worker", "drain", "w-1", "--reason", "upgrade", "--wait", "100ms"]).await;
    assert_eq!(code(&busy), 1, "{busy:?}");
    assert!(busy.stderr.contains("w-1 still has 1 task and 0 sandboxes"), "{}", busy.stderr);
    let shown = site.json(&["worker", "show", "w-1"]).await;
    assert_eq!((&shown["status"], &shown["drain_reason"]), (&json!("draining"), &json!("upgrade")));
    let second = site.submit(&["q", "echo"]).await;
    wait_until("why names the drain", SOON, async || {
        site.ok(&["task", "why", &second]).await.contains("workers_drained")
    })
    .await;
    site.ok(&["task", "cancel", &id]).await;
    site.ok(&["worker", "drain", "w-1", "--wait", "60s"]).await;
    assert_eq!(site.json(&["task", "show", &second]).await["state"], "Ready");
    site.ok(&["worker", "undrain", "w-1", "--wait", "60s"]).await;
    wait_until("the second task is done", SOON, async || {
        site.json(&["task", "show", &second]).await["state"] == "Succeeded"
    })
    .await;
}

#[tokio::test]
async fn a_redrive_is_listed_paused_resumed_and_canceled() {
    let site = Site::new().await;
    assert_eq!(site.ok(&["dead-letter", "redrives", "list"]).await, "No redrives.\n");
    let mut worker = site.worker(&["--queue", "q"]);
    for _ in 0..3 {
        site.submit(&["q", "fail", "--max-attempts", "1"]).await;
    }
    wait_until("all are dead letters", SOON, async || {
        site.json(&["dead-letter", "list"]).await["items"].as_array().unwrap().len() == 3
    })
    .await;
    worker.kill();
    // So slow that none is released while the test looks.
    let begun = site.json(&["dead-letter", "redrive", "--queue", "q", "--rate", "0.001", "--yes", "--key", "k"]).await;
    let id = begun["redrive_id"].as_str().unwrap();
    let of = async |verb: &str| site.ok(&["dead-letter", "redrives", verb, id]).await;
    assert!(of("pause").await.starts_with(&format!("Redrive {id} is paused: ")));
    assert!(of("show").await.contains("is paused: "));
    let row = site.ok(&["dead-letter", "redrives", "list"]).await;
    let row: Vec<&str> = row.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[3], row[4], row[6]), (id, "paused", "3", "0.001/s", "queue=q"));
    assert!(of("resume").await.contains("is running: "));
    assert!(of("cancel").await.contains("is canceled: "));
    // One that has ended stays as it is, which is not what was asked for.
    for (verb, part) in [("resume", "was not resumed: it is canceled"), ("pause", "was not paused: it is canceled")] {
        let refused = site.run(&["dead-letter", "redrives", verb, id]).await;
        assert_eq!(code(&refused), 4, "{refused:?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    of("cancel").await;
    assert_eq!(code(&site.run(&["dead-letter", "redrives", "show", "rd_nothing"]).await), 3);
    let other = ["dead-letter", "redrive", "--reason", "non_retryable", "--yes", "--key", "k"];
    let refused = site.run(&other).await;
    assert_eq!(code(&refused), 4, "{refused:?}");
    assert!(refused.stderr.contains("idempotency_conflict"), "{}", refused.stderr);
}

#[tokio::test]
async fn a_wait_says_why_nothing_moves() {
    let site = Site::new().await;
    let mut waiting = Child::spawn(site.command(&["task", "submit", "q", "echo", "--wait"]));
    waiting.wait_for_stderr("no worker has ever asked for this queue", SOON).await;
    waiting.wait_for_stderr("try: tenure worker --queue q", SOON).await;
    assert_eq!(waiting.output().stdout, "");
    let closed = Port::reserve();
    let url = format!("http://127.0.0.1:{}/dispatch", closed.number());
    site.ok(&["queue", "create", "pushed", "--push-url", &url, "--push-ack-timeout", "5s"]).await;
    assert_eq!(site.json(&["queue", "show", "pushed"]).await["push"]["ack_timeout_ms"], 5_000);
    let mut pushed = Child::spawn(site.command(&["task", "submit", "pushed", "echo", "--wait"]));
    let line = pushed.wait_for_stderr("push_target_down", SOON).await;
    assert!(line.contains("cannot be reached") && line.contains("no attempt is spent"), "{line}");
}
