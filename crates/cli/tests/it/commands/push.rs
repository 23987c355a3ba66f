//! `tenure push test` and queues that push.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tenure_testkit::{Tenure, wait_until};

use crate::commands::kit::{Home, SOON, code, finish};

/// A worker that gives one answer to everything, and keeps what it was sent.
struct Worker {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Worker {
    fn answering(answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/dispatch", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = Vec::new();
                let mut chunk = [0; 4096];
                while !is_whole(&request) {
                    match stream.read(&mut chunk) {
                        Ok(0) | Err(_) => break,
                        Ok(read) => request.extend_from_slice(&chunk[..read]),
                    }
                }
                kept.lock().unwrap().push(String::from_utf8_lossy(&request).into_owned());
                let _ = stream.write_all(format!("HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n").as_bytes());
            }
        });
        Self { url, seen }
    }

    fn last(&self) -> Option<String> {
        self.seen.lock().unwrap().last().cloned()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_some_and(|length| body.len() >= length.trim().parse().unwrap())
}

async fn test(home: &Home, url: &str, more: &[&str]) -> (i32, Value) {
    let output = finish(home.command(&[&["push", "test", url, "--json"], more].concat())).await;
    let told = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (code(&output), told)
}

#[tokio::test]
async fn a_test_says_what_the_answer_means() {
    let home = Home::new();
    for (answer, exit, outcome) in [
        ("202 Accepted", 0, "accepted"),
        ("409 Conflict", 0, "duplicate"),
        ("503 Service Unavailable\r\nRetry-After: 7", 5, "again"),
        ("500 Oops", 5, "again"),
        ("401 Unauthorized", 4, "rejected"),
        ("302 Found\r\nLocation: http://127.0.0.1:1/", 4, "rejected"),
    ] {
        let worker = Worker::answering(answer);
        let (code, told) = test(&home, &worker.url, &[]).await;
        assert_eq!((code, &told["outcome"], &told["guard"]), (exit, &json!(outcome), &json!("allowed")), "{told}");
        assert_eq!(told["addresses"], json!(["127.0.0.1"]));
        assert_eq!(told["status"].to_string(), answer[..3]);
        let sent = worker.last().unwrap();
        assert!(sent.contains("x-tenure-test: true") && sent.contains("tenure.push-test"), "{sent}");
        assert!(!sent.contains("x-tenure-dispatch-secret"), "{sent}");
    }
    let (code, told) = test(&home, "http://127.0.0.1:1/dispatch", &[]).await;
    assert_eq!((code, &told["outcome"]), (5, &json!("no_answer")), "{told}");
    let (code, told) = test(&home, "http://169.254.169.254/", &[]).await;
    assert_eq!((code, &told["outcome"], told["addresses"].as_array().unwrap().len()), (2, &json!("refused"), 0));
    assert!(told["guard"].as_str().unwrap().contains("metadata"), "{told}");
}

#[tokio::test]
async fn a_test_sends_the_secret_and_shows_it_to_nobody_else() {
    let home = Home::new();
    let worker = Worker::answering("200 OK");
    std::fs::write(home.path().join("secret"), "hunter2-hunter2\n").unwrap();
    let file = home.path().join("secret");
    let mut command = home.command(&["push", "test", &worker.url, "--secret-ref", "etl"]);
    command.env("TENURE_PUSH__SECRETS", r#"{"etl":"hunter2-inline"}"#);
    let output = finish(command).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(worker.last().unwrap().contains("x-tenure-dispatch-secret: hunter2-inline"));
    assert!(!format!("{output:?}").contains("hunter2"), "{output:?}");
    let mut command =
        home.command(&["push", "test", &worker.url, "--secret-ref", "etl", "--secret-header", "authorization"]);
    command.env("TENURE_PUSH__SECRETS", r#"{"etl":"hunter2-inline"}"#);
    assert!(finish(command).await.stdout.contains("sent as authorization"));
    assert!(worker.last().unwrap().contains("authorization: Bearer hunter2-inline"));
    let (code_of_file, told) = test(&home, &worker.url, &["--secret-file", file.to_str().unwrap()]).await;
    assert_eq!((code_of_file, &told["secret_sent"]), (0, &json!(true)));
    assert!(worker.last().unwrap().contains("x-tenure-dispatch-secret: hunter2-hunter2"));
    let unknown = finish(home.command(&["push", "test", &worker.url, "--secret-ref", "nope"])).await;
    assert_eq!(code(&unknown), 2, "{unknown:?}");
}

#[tokio::test]
async fn outside_of_dev_mode_this_machine_is_refused() {
    let home = Home::new();
    let mut command = home.command(&["push", "test", "https://127.0.0.1:1/dispatch", "--json"]);
    command.env("TENURE_AUTH__ENABLED", "true").env("TENURE_AUTH__API_KEY", "a-key-of-the-tests-with-32-bytes-or-more");
    let output = finish(command).await;
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(output.stdout.contains("dev mode") && output.stdout.contains("callback.base_url"), "{output:?}");
}

#[tokio::test]
async fn a_queue_is_set_to_push_and_back() {
    let server = Tenure::serve_with(&[], |command| {
        command.env("TENURE_PUSH__SECRETS", r#"{"etl":"hunter2-hunter2"}"#);
    })
    .await;
    let home = Home::new();
    let run = async |args: &[&str]| {
        let mut command = home.command(args);
        command.env("TENURE_SERVER", server.url());
        finish(command).await
    };
    let worker = Worker::answering("202 Accepted");
    let set =
        ["queue", "create", "etl", "--push-url", &worker.url, "--push-secret-ref", "etl", "--push-concurrency", "2"];
    let output = run(&set).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(output.stdout.contains("push http://127.0.0.1:"), "{output:?}");
    let shown = run(&["queue", "show", "etl", "--json"]).await;
    let queue: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!((&queue["kind"], &queue["push"]["concurrency"]), (&json!("push"), &json!(2)), "{queue}");
    let card = run(&["queue", "show", "etl"]).await;
    assert!(card.stdout.contains(&worker.url) && card.stdout.contains("10000 ms"), "{card:?}");

    let submit = run(&["task", "submit", "etl", "echo"]).await;
    assert_eq!(code(&submit), 0, "{submit:?}");
    let sent = wait_until("the push", SOON, async || worker.last()).await;
    assert!(sent.contains("x-tenure-dispatch-secret: hunter2-hunter2"), "{sent}");
    assert!(sent.contains(&format!("\"callbackBaseUrl\":\"{}\"", server.url())), "{sent}");

    for (args, exit) in [
        (&["queue", "set", "etl", "--push-url", "http://10.0.0.1/"][..], 2),
        (&["queue", "set", "etl", "--push-concurrency", "2"], 2),
        (&["queue", "set", "etl", "--no-push", "--push-url", "http://127.0.0.1/"], 2),
        (&["queue", "show", "nope"], 3),
        (&["queue", "set", "etl", "--no-push"], 0),
    ] {
        let output = run(args).await;
        assert_eq!(code(&output), exit, "{args:?}: {output:?}");
    }
    let shown = run(&["queue", "show", "etl", "--json"]).await;
    assert!(shown.stdout.contains("\"kind\":\"pull\""), "{shown:?}");
}

#[tokio::test]
async fn what_cannot_be_sent_along_is_said() {
    let home = Home::new();
    for (flags, said) in [
        (["--secret-file", "/nowhere"], "/nowhere could not be read"),
        (["--secret-ref", "etl"], "push.secrets has no `etl`"),
        (["--mtls-ref", "etl"], "push.mtls has no `etl`"),
    ] {
        let output =
            finish(home.command(&[&["push", "test", "http://127.0.0.1:1/dispatch"][..], &flags].concat())).await;
        assert_eq!(code(&output), 2, "{output:?}");
        assert!(output.stderr.contains(said), "{output:?}");
    }
}
