//! Runs by the client, against a real HTTP server that answers as each test says.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tenure_client::run::{RerunRequest, RunEntry, RunSubmission};
use tenure_client::user::CancelRequest;
use tenure_client::{Client, RunFilter, RunState, TaskSubmission};

const ID: &str = "run_01HGW5N7XHJM4GX29KZRXQP6N8";

#[derive(Clone, Default)]
struct Canned {
    answers: Arc<Mutex<VecDeque<(u16, Value)>>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Canned {
    async fn serve(answers: impl IntoIterator<Item = (u16, Value)>) -> (Self, Client) {
        let canned = Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() };
        let app = Router::new().fallback(answer).with_state(canned.clone());
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        (canned, Client::new(url).unwrap())
    }

    fn asked(&self) -> Vec<(String, Value)> {
        self.asked.lock().unwrap().clone()
    }
}

async fn answer(State(canned): State<Canned>, request: Request) -> (StatusCode, String) {
    let line = format!("{} {}", request.method(), request.uri());
    let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    canned.asked.lock().unwrap().push((line, serde_json::from_slice(&body).unwrap_or_default()));
    let (status, body) = canned.answers.lock().unwrap().pop_front().unwrap();
    (StatusCode::from_u16(status).unwrap(), body.to_string())
}

fn run(state: &str, running: u32) -> Value {
    json!({"run_id": ID, "state": state, "created": true, "fingerprint": "sha256:00", "tenant": "default",
        "workspace": "default", "cancel_requested": false, "created_at": "2025-01-15T10:00:00Z",
        "counts": {"total": 1, "open": 1, "succeeded": 0, "failed": 0, "skipped": 0, "canceled": 0, "running": running},
        "tasks": [{"key": "a", "task_id": "task_x", "state": "Ready", "attempt": 0, "depends_on": [], "operator": "op", "queue": "q"}]})
}

fn submission(key: Option<&str>) -> RunSubmission {
    let task = |name: &str| TaskSubmission { queue: "q".into(), operator: name.into(), ..TaskSubmission::default() };
    let first = RunEntry { key: "a".into(), depends_on: vec![], task: task("extract") };
    let second = RunEntry { key: "b".into(), depends_on: vec!["a".into()], task: task("load") };
    RunSubmission { run_key: key.map(Into::into), tasks: vec![first, second], ..RunSubmission::default() }
}

#[tokio::test]
async fn a_run_is_written_as_the_api_takes_it() {
    let (canned, client) = Canned::serve([(201, run("Running", 0))]).await;
    let submitted = client.submit_run(&submission(Some("k"))).await.unwrap();
    assert_eq!((submitted.run_id.as_str(), submitted.created), (ID, Some(true)));
    let expected = json!({"run_key": "k", "tasks": [
        {"key": "a", "queue": "q", "operator": "extract"},
        {"key": "b", "queue": "q", "operator": "load", "depends_on": ["a"]}]});
    assert_eq!(canned.asked(), [("POST /api/v1/runs".to_owned(), expected)]);
}

#[tokio::test]
async fn only_a_submit_with_a_key_is_repeated_when_the_answer_is_lost() {
    let (canned, client) = Canned::serve([(502, json!({})), (200, run("Running", 0))]).await;
    client.submit_run(&submission(Some("k"))).await.unwrap();
    assert_eq!(canned.asked().len(), 2);
    let (canned, client) = Canned::serve([(502, json!({})), (201, run("Running", 0))]).await;
    client.submit_run(&submission(None)).await.unwrap_err();
    assert_eq!(canned.asked().len(), 1);
}

#[tokio::test]
async fn each_call_goes_to_its_path() {
    let page = json!({"items": [run("Failed", 0)], "next_cursor": "7"});
    let cancelled = json!({"run_id": ID, "state": "Canceling", "cancel_requested": true, "cancel_reason": "x"});
    let answers = [(200, run("Failed", 0)), (200, page), (200, cancelled), (201, run("Running", 0))];
    let (canned, client) = Canned::serve(answers).await;
    assert_eq!(client.run(ID).await.unwrap().state, "Failed");
    let filter = RunFilter { state: Some(RunState::Failed), label: Some("team:etl".into()), ..RunFilter::default() };
    assert_eq!(client.runs(&filter).await.unwrap().next_cursor.as_deref(), Some("7"));
    let request = CancelRequest { reason: Some("x".into()), mode: None };
    assert_eq!(client.cancel_run(ID, &request).await.unwrap().cancel_reason, "x");
    let request = RerunRequest { mode: Some("from_failure".into()), run_key: None };
    assert_eq!(client.rerun(ID, &request).await.unwrap().state, "Running");
    let lines: Vec<String> = canned.asked().into_iter().map(|(line, _)| line).collect();
    let expected = [
        format!("GET /api/v1/runs/{ID}"),
        "GET /api/v1/runs?state=Failed&label=team%3Aetl".to_owned(),
        format!("POST /api/v1/runs/{ID}/cancel"),
        format!("POST /api/v1/runs/{ID}/rerun"),
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_watch_tells_each_change_once_and_ends_with_the_run() {
    let answers =
        [(200, run("Running", 0)), (200, run("Running", 0)), (200, run("Running", 1)), (200, run("Succeeded", 0))];
    let (_, client) = Canned::serve(answers).await;
    let mut watch = client.watch_run(ID);
    let mut seen = Vec::new();
    while let Some(run) = watch.next().await {
        let run = run.unwrap();
        seen.push((run.state, run.counts.running));
    }
    let running = |count| (RunState::Running, Some(count));
    assert_eq!(seen, [running(0), running(1), (RunState::Succeeded, Some(0))]);
}
