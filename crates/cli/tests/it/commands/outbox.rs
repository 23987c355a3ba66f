//! Queues with a transport, and `tenure outbox`.

use serde_json::{Value, json};
use tenure_testkit::{Redis, Tenure, wait_until};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::commands::kit::{Home, SOON, Site, code};

/// A server with these settings.
async fn site(settings: &[(&str, &str)]) -> Site {
    let server = Tenure::serve_with(&[], |command| {
        command.envs(settings.iter().copied());
    });
    Site { server: server.await, home: Home::new() }
}

#[tokio::test]
async fn a_queue_is_set_to_a_transport() {
    // Nothing listens there: a transport that is down holds up nobody.
    let site = site(&[("TENURE_REDIS__URL", "redis://127.0.0.1:1")]).await;
    assert_eq!(site.json(&["queue", "create", "etl", "--transport", "redis"]).await["transport"], "redis");
    assert_eq!(site.json(&["queue", "set", "etl", "--max-running", "3"]).await["transport"], "redis");
    let table = site.ok(&["queue", "list"]).await;
    let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().take(3).collect();
    assert_eq!(row, ["etl", "open", "redis"], "{table}");
    for (name, said) in [("sqs", "set sqs.region"), ("kafka", "must be embedded, redis or sqs")] {
        let refused = site.run(&["queue", "set", "etl", "--transport", name]).await;
        assert_eq!(code(&refused), 2);
        assert!(refused.stderr.contains(said), "{}", refused.stderr);
    }
    assert_eq!(site.json(&["queue", "set", "etl", "--transport", "embedded"]).await["transport"], "embedded");
}

#[tokio::test]
async fn the_outbox_is_listed() {
    // Nothing listens there, so wake-ups wait.
    let site = site(&[("TENURE_REDIS__URL", "redis://127.0.0.1:1")]).await;
    assert_eq!(site.ok(&["outbox", "list"]).await, "The outbox is empty.\n");
    site.ok(&["queue", "create", "etl", "--transport", "redis"]).await;
    let task = site.submit(&["etl", "echo"]).await;
    site.submit(&["etl", "echo"]).await;
    let all = site.json(&["outbox", "list"]).await;
    let entry = &all["items"][0];
    assert_eq!((&entry["task_id"], &entry["state"]), (&json!(task), &json!("waiting")));
    let table = site.ok(&["outbox", "list", "--queue", "etl", "--state", "waiting"]).await;
    let row: Vec<_> = table.lines().nth(1).unwrap_or_default().split_whitespace().take(6).collect();
    let id = entry["id"].as_str().unwrap_or_default();
    assert_eq!(row, [id, "waiting", "redis", "etl", &task, "0"], "{table}");
    let few = site.run(&["outbox", "list", "--limit", "1"]).await;
    assert_eq!(few.stdout.lines().count(), 2, "{}", few.stdout);
    assert!(few.stderr.contains("There are more"), "{}", few.stderr);
    site.ok(&["queue", "create", "other"]).await;
    assert_eq!(site.ok(&["outbox", "list", "--queue", "other"]).await, "The outbox is empty.\n");
    assert_eq!(site.json(&["outbox", "list", "--state", "failed"]).await["items"], json!([]));

    assert_eq!(site.ok(&["outbox", "retry", "--all", "--queue", "etl"]).await, "No failed entry was found.\n");
    assert_eq!(site.json(&["outbox", "retry", "--all"]).await, json!({"retried": 0}));
    assert_eq!(code(&site.run(&["outbox", "retry", id]).await), 3);
    for wrong in [
        &["outbox", "retry"][..],
        &["outbox", "retry", "nonsense"],
        &["outbox", "retry", id, "--all"],
        &["outbox", "retry", id, "--queue", "etl"],
        &["outbox", "retry", "--queue", "etl"],
        &["outbox", "list", "--state", "lost"],
    ] {
        assert_eq!(code(&site.run(wrong).await), 2, "{wrong:?}");
    }
}

/// One command, and the first line of the answer.
async fn ask(redis: &Redis, command: &str) -> String {
    let mut stream = BufReader::new(tokio::net::TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap());
    stream.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    line.trim_end().to_owned()
}

#[tokio::test]
async fn what_redis_refused_is_tried_again_when_somebody_says_so() {
    let redis = Redis::start().await;
    let url = redis.url();
    let settings =
        [("TENURE_REDIS__URL", &*url), ("TENURE_REDIS__KEY_PREFIX", "tenure:"), ("TENURE_OUTBOX__MAX_TRIES", "1")];
    let site = site(&settings).await;
    // The place of the stream is taken.
    assert_eq!(ask(&redis, "SET tenure:etl x").await, "+OK");
    site.ok(&["queue", "create", "etl", "--transport", "redis"]).await;
    for _ in 0..3 {
        site.submit(&["etl", "echo"]).await;
    }
    let in_state = async |state: &str| {
        let page = site.json(&["outbox", "list", "--state", state]).await;
        page["items"].as_array().unwrap().clone()
    };
    let failed: Vec<Value> =
        wait_until("all were refused", SOON, async || Some(in_state("failed").await).filter(|all| all.len() == 3))
            .await;
    let table = site.ok(&["outbox", "list", "--state", "failed"]).await;
    assert_eq!(table.matches("Redis refused: the key of the queue is not a stream").count(), 3, "{table}");
    assert_eq!(failed[0]["tries"], 1);

    assert_eq!(ask(&redis, "DEL tenure:etl").await, ":1");
    let first = failed[0]["id"].as_str().unwrap();
    assert_eq!(site.ok(&["outbox", "retry", first]).await, "Retrying 1 entry.\n");
    wait_until("one is published", SOON, async || in_state("published").await.len() == 1).await;
    assert_eq!((in_state("failed").await.len(), ask(&redis, "XLEN tenure:etl").await), (2, ":1".to_owned()));
    site.ok(&["queue", "create", "other"]).await;
    assert_eq!(site.json(&["outbox", "retry", "--all", "--queue", "other"]).await, json!({"retried": 0}));
    assert_eq!(site.ok(&["outbox", "retry", "--all", "--queue", "etl"]).await, "Retrying 2 entries.\n");
    let published: Vec<Value> =
        wait_until("all are published", SOON, async || Some(in_state("published").await).filter(|all| all.len() == 3))
            .await;
    assert_eq!(ask(&redis, "XLEN tenure:etl").await, ":3");
    assert!(published.iter().all(|entry| entry["message_id"].as_str().is_some_and(|id| id.contains('-'))));
}
