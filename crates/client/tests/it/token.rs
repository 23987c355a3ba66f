//! Workers whose token the server issues.

use std::sync::mpsc;
use std::time::Duration;

use crate::support::{FakeServer, Reply, Script, Seen, completed, heartbeats, job};
use tenure_client::{Json, TaskContext, TaskError, Worker, WorkerError};
use tokio::task::JoinHandle;

async fn echo(task: TaskContext) -> Result<Json, TaskError> {
    Ok(task.raw_payload().clone())
}

fn worker(server: &FakeServer) -> Worker {
    let worker = Worker::new(&server.url).name("w 1").queues(["q"]).operator("echo", echo);
    worker.poll_wait(Duration::from_millis(100)).bootstrap_key("b00t", Some(Duration::from_secs(90)))
}

fn spawn(worker: Worker) -> JoinHandle<Result<(), WorkerError>> {
    tokio::spawn(worker.run())
}

fn lasting(token_seconds: i64) -> Script {
    Script { token_seconds, ..Script::default() }
}

fn token(seen: &Seen) -> &str {
    seen.headers["x-worker-token"].to_str().unwrap()
}

/// Requests that came with this token.
fn with(seen: &[Seen], text: &str) -> usize {
    seen.iter().filter(|seen| token(seen) == text).count()
}

#[tokio::test]
async fn the_token_is_issued_for_the_key_and_shared_by_claims_and_heartbeats() {
    let server = FakeServer::start(lasting(90)).await;
    let worker = worker(&server).operator("endless", |_task| std::future::pending::<Result<(), TaskError>>());
    server.script(|script| script.jobs.extend([job("a", "endless", 1)]));
    let _run = spawn(worker.concurrency(2));
    let seen = server.until(|seen| heartbeats(seen) >= 2 && seen.iter().any(|seen| seen.body.claim.is_some())).await;
    assert_eq!(with(&seen, "token-1"), seen.len());
    let asked = server.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].worker_id, "w 1");
    assert_eq!(asked[0].headers["x-worker-bootstrap-key"], "b00t");
    assert!(!asked[0].headers.contains_key("x-worker-token"));
    assert_eq!(asked[0].body, serde_json::json!({"ttl": "1m30s"}));
    // The key goes to the issuer and nowhere else, the id goes with everything.
    assert!(seen.iter().all(|seen| !seen.headers.contains_key("x-worker-bootstrap-key")));
    assert!(seen.iter().all(|seen| seen.headers["x-worker-id"] == "w 1"));
}

#[tokio::test]
async fn the_token_is_renewed_before_it_runs_out_also_while_a_handler_blocks_the_runtime() {
    let server = FakeServer::start(lasting(3)).await;
    server.script(|script| script.jobs.extend([job("a", "block", 1)]));
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let worker = worker(&server).operator("block", move |_task| {
        released.lock().unwrap().recv().unwrap();
        async { Ok(1) }
    });
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run())
    });
    server.until(|seen| with(seen, "token-2") > 0).await;
    let asked = server.asked();
    let apart = asked[1].at - asked[0].at;
    // Two thirds of three seconds; the date of an answer has whole seconds only.
    assert!(apart >= Duration::from_millis(1200), "{apart:?}");
    release.send(()).unwrap();
    server.until(|seen| completed(seen) == ["a"]).await;
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_for_all_and_the_request_sent_again() {
    let server = FakeServer::start(lasting(600)).await;
    let worker = worker(&server).operator("endless", |_task| std::future::pending::<Result<(), TaskError>>());
    server.script(|script| script.jobs.extend([job("a", "endless", 1)]));
    let _run = spawn(worker.concurrency(2));
    server.until(|seen| heartbeats(seen) >= 1).await;
    server.script(|script| {
        script.only_token = Some("token-2".into());
        script.jobs.push_back(job("b", "echo", 60));
    });
    // Heartbeats and claims are refused alike, and go on with the same new token.
    let later = |seen: &[Seen]| {
        let later: Vec<_> = seen.iter().filter(|seen| token(seen) == "token-2").cloned().collect();
        heartbeats(&later) >= 2 && completed(&later) == ["b"]
    };
    let seen = server.until(later).await;
    assert_eq!(server.asked().len(), 2);
    let refused: Vec<_> = seen.iter().skip_while(|seen| token(seen) == "token-1").collect();
    assert!(refused.iter().filter(|seen| token(seen) == "token-1").count() <= 1, "an old token was sent on");
}

#[tokio::test]
async fn a_request_asks_for_one_new_token_and_no_more() {
    let server = FakeServer::start(lasting(600)).await;
    server.script(|script| script.claim = Reply::RefuseAll(401, "invalid_worker_token"));
    let error = worker(&server).run().await.unwrap_err();
    assert!(matches!(error, WorkerError::Refused { status: 401, .. }), "{error}");
    let tokens: Vec<_> = server.seen().iter().map(|seen| token(seen).to_owned()).collect();
    assert_eq!(tokens, ["token-1", "token-2"]);
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn an_issuer_that_cannot_now_is_asked_again_after_a_while() {
    let server = FakeServer::start(lasting(600)).await;
    server.script(|script| {
        script.issuer_refusals = [(503, "no_signing_key"), (429, "rate_limited")].into();
        script.jobs.push_back(job("a", "echo", 60));
    });
    let _run = spawn(worker(&server));
    server.until(|seen| completed(seen) == ["a"]).await;
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    let waits: Vec<_> = asked.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!(waits[0] >= Duration::from_millis(500) && waits[1] >= Duration::from_secs(1), "{waits:?}");
}

#[tokio::test]
async fn a_key_that_the_server_does_not_know_ends_the_worker() {
    let server = FakeServer::start(lasting(600)).await;
    server.script(|script| script.issuer_refusals = [(401, "invalid_bootstrap_key")].into());
    let error = worker(&server).run().await.unwrap_err();
    assert!(matches!(&error, WorkerError::Refused { status: 401, error, .. } if error == "invalid_bootstrap_key"));
    assert!(!error.to_string().contains("b00t"));
    assert_eq!(server.seen().len(), 0, "nothing was sent without a token");
}

#[tokio::test]
async fn once_let_in_a_refused_key_is_sat_out() {
    let server = FakeServer::start(lasting(600)).await;
    server.script(|script| script.jobs.push_back(job("a", "echo", 60)));
    let _run = spawn(worker(&server));
    server.until(|seen| completed(seen) == ["a"]).await;
    server.script(|script| {
        script.issuer_refusals = [(401, "invalid_bootstrap_key")].into();
        script.only_token = Some("token-3".into());
        script.jobs.push_back(job("b", "echo", 60));
    });
    server.until(|seen| with(seen, "token-3") > 0).await;
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_key_file_is_read_whenever_a_token_is_asked_for() {
    let server = FakeServer::start(lasting(600)).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one\n").unwrap();
    let _run = spawn(worker(&server).bootstrap_key_file(file.path(), None));
    server.until(|seen| !seen.is_empty()).await;
    std::fs::write(file.path(), "two\n").unwrap();
    server.script(|script| script.only_token = Some("token-2".into()));
    server.until(|seen| with(seen, "token-2") > 0).await;
    let keys: Vec<_> = server.asked().iter().map(|asked| asked.headers["x-worker-bootstrap-key"].clone()).collect();
    assert_eq!(keys, ["one", "two"]);
    assert_eq!(server.asked()[0].body, serde_json::json!({}));

    let missing = worker(&server).bootstrap_key_file("/does/not/exist", None).run().await.unwrap_err();
    assert!(matches!(missing, WorkerError::BootstrapKeyFile { .. }));
}

#[tokio::test]
async fn a_key_needs_a_name_that_it_belongs_to() {
    let nameless = Worker::new("http://127.0.0.1:9").queues(["q"]).operator("echo", echo).bootstrap_key("b00t", None);
    let error = nameless.run().await.unwrap_err();
    assert!(matches!(&error, WorkerError::Setup(message) if message.contains("name")), "{error}");
}
