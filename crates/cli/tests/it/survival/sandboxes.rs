//! A worker that holds sandboxes, killed and stopped: it adopts what it left, and nothing is left that nobody knows.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use jiff::Timestamp;
use serde_json::{Value, json};
use tenure_testkit::{Child, Signal, Tenure, wait_until};
use tokio::net::TcpListener;

const SANDBOXES: usize = 50;
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The control plane: it counts heartbeats and renews every lease.
#[derive(Debug, Clone, Default)]
struct Plane {
    url: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Default)]
struct Seen {
    beats: Vec<Value>,
    generations: BTreeMap<String, i64>,
    refuses_beats: bool,
}

impl Plane {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let plane = Self { url, ..Self::default() };
        let app = Router::new()
            .route("/api/v1/worker/{id}/heartbeat", post(heartbeat))
            .route("/api/v1/worker/{id}/leases/{resource}/renew", post(renew))
            .with_state(plane.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        plane
    }

    fn with<T>(&self, act: impl FnOnce(&mut Seen) -> T) -> T {
        act(&mut self.seen.lock().unwrap())
    }

    /// By `seq`: one that was given up on the way may come late.
    fn last_status(&self) -> Value {
        self.with(|seen| seen.beats.iter().max_by_key(|beat| beat["seq"].as_u64()).map(|beat| beat["status"].clone()))
            .unwrap_or_default()
    }

    /// A heartbeat of another start of the worker than `before`.
    async fn next_start(&self, before: &Value) -> Value {
        wait_until("a heartbeat of a new worker", PATIENCE, async || {
            let last = self.with(|seen| seen.beats.last().cloned());
            last.filter(|beat| beat["boot_id"] != *before)
        })
        .await
    }
}

async fn heartbeat(State(plane): State<Plane>, Json(beat): Json<Value>) -> Response {
    plane.with(|seen| {
        seen.beats.push(beat);
        if seen.refuses_beats {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        Json(json!({"features": ["lease_renewal"]})).into_response()
    })
}

async fn renew(
    State(plane): State<Plane>,
    UrlPath((id, resource)): UrlPath<(String, String)>,
    Json(_): Json<Value>,
) -> Json<Value> {
    let generation = plane.with(|seen| {
        let generation = seen.generations.entry(resource.clone()).or_insert(1);
        *generation += 1;
        *generation
    });
    Json(json!({"lease": lease(&id, &resource, generation)}))
}

fn lease(holder: &str, resource: &str, generation: i64) -> Value {
    let expires_at = Timestamp::now().checked_add(Duration::from_secs(300)).unwrap().to_string();
    json!({"resource_id": resource, "holder_id": holder, "generation": generation, "expires_at": expires_at})
}

fn worker(folder: &Path, plane: &Plane, more: &[&str]) -> Command {
    let mut command = Tenure::command(&["worker", "--id", "worker-a", "--control-plane", &plane.url]);
    command
        .args(["--heartbeat-interval", "200ms", "--data"])
        .arg(folder)
        .args(more)
        .env("TENURE_PROVIDERS__NAMESPACE__ENABLED", "false")
        .env("TENURE_PROVIDERS__PROCESS__ENABLED", "true")
        .env("TENURE_PROVIDERS__DEFAULT", "process");
    command
}

fn serving(folder: &Path, plane: &Plane) -> Child {
    let mut command = worker(folder, plane, &["--listen", "127.0.0.1:0", "--worker-token", TOKEN]);
    command.env("TENURE_WORKER__SHUTDOWN_TIMEOUT", "20s");
    Child::spawn(command)
}

static CALLS: AtomicUsize = AtomicUsize::new(0);

struct Rpc {
    http: reqwest::Client,
    url: String,
}

impl Rpc {
    fn to(beat: &Value) -> Self {
        let url = format!("{}/rpc", beat["capacity"]["rpc_url"].as_str().unwrap());
        Self { http: reqwest::Client::new(), url }
    }

    async fn call(&self, id: &str, method: &str, lease: Option<Value>, params: Value) -> (u16, Value) {
        self.call_with(TOKEN, id, method, lease, params).await
    }

    async fn call_with(
        &self,
        token: &str,
        id: &str,
        method: &str,
        lease: Option<Value>,
        params: Value,
    ) -> (u16, Value) {
        let mut body = json!({"id": id, "method": method, "worker_id": "worker-a", "params": params});
        if let Some(lease) = lease {
            body["lease"] = lease;
        }
        let post = self.http.post(&self.url).header("x-worker-id", "worker-a").header("x-worker-token", token);
        let answer = post.json(&body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap_or_default())
    }

    async fn spawn(&self, sandbox_id: &str, generation: i64) -> (u16, Value) {
        let params = json!({"sandbox_id": sandbox_id, "image": "host", "provider": "mock", "memory_mb": 64, "vcpus": 1, "ttl": "1h"});
        // A repetition under the same id would get the same answer.
        let id = format!("req-spawn-{}", CALLS.fetch_add(1, Ordering::SeqCst));
        self.call(&id, "worker.spawn", Some(lease("worker-a", sandbox_id, generation)), params).await
    }
}

#[tokio::test]
async fn a_killed_worker_adopts_its_sandboxes_and_nothing_is_unmanaged() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let mut first = serving(folder.path(), &plane);
    let beat = plane.next_start(&Value::Null).await;
    let rpc = Rpc::to(&beat);
    let mut runtimes = BTreeMap::new();
    for number in 0..SANDBOXES {
        let id = format!("sb-{number:08x}");
        let (status, answer) = rpc.spawn(&id, 1).await;
        assert_eq!((status, &answer["result"]["provider"]), (200, &json!("mock")), "{answer}");
        runtimes.insert(id, answer["result"]["runtime_id"].as_str().unwrap().to_owned());
    }
    let gone = runtimes.pop_first().unwrap();
    // Renewals have raised the generation meanwhile, so a late one is needed.
    let target = json!({"sandbox_id": gone.0, "provider": "mock"});
    let late = lease("worker-a", &gone.0, 1_000);
    let (status, answer) = rpc.call("req-destroy", "worker.destroy", Some(late), target).await;
    assert_eq!(status, 200, "{answer}");
    first.kill();

    let mut second = serving(folder.path(), &plane);
    let beat = plane.next_start(&beat["boot_id"]).await;
    let rpc = Rpc::to(&beat);
    let held: BTreeMap<_, _> = beat["inventory"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            assert_eq!(item["state"], "running", "{item}");
            (item["sandbox_id"].as_str().unwrap().to_owned(), item["runtime_id"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(held, runtimes);
    for (id, runtime_id) in &runtimes {
        let params = json!({"sandbox_id": id, "runtime_id": runtime_id, "provider": "mock", "command": "echo", "args": ["back"], "mode": "argv"});
        let (status, answer) = rpc.call(&format!("req-exec-{runtime_id}"), "worker.exec", None, params).await;
        assert_eq!((status, &answer["result"]["stdout"]), (200, &json!("back\n")), "{answer}");
    }
    // A spawn that is repeated finds its sandbox, one of an older lease does not bring back what was destroyed.
    let (first_id, runtime_id) = runtimes.first_key_value().unwrap();
    let (status, answer) = rpc.spawn(first_id, 100_000).await;
    assert_eq!((status, &answer["result"]["runtime_id"]), (200, &json!(runtime_id)), "{answer}");
    for (id, generation) in [(&gone.0, 1), (&gone.0, 999), (first_id, 99_999)] {
        let (status, answer) = rpc.spawn(id, generation).await;
        assert_eq!((status, &answer["code"]), (403, &json!("lease_stale")), "{answer}");
    }
    let ended = second.terminate().await;
    assert!(ended.success(), "{ended}: {}", second.output().stderr);
}

#[tokio::test]
async fn a_stopped_worker_finishes_calls_and_says_that_it_is_offline() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let mut worker = serving(folder.path(), &plane);
    let rpc = Rpc::to(&plane.next_start(&Value::Null).await);
    let (status, answer) = rpc.spawn("sb-1", 1).await;
    assert_eq!(status, 200, "{answer}");
    let (release, started) = (folder.path().join("release"), folder.path().join("started"));
    let script = format!(
        "touch '{}'; while [ ! -e '{}' ]; do sleep 0.05; done; echo done",
        started.display(),
        release.display()
    );
    let call = rpc.call("req-1", "worker.exec", None, json!({"sandbox_id": "sb-1", "command": script}));
    let stop = async {
        wait_until("the command runs", PATIENCE, async || started.exists()).await;
        worker.signal(Signal::SIGTERM);
        wait_until("it drains", PATIENCE, async || plane.last_status() == "draining").await;
        std::fs::write(&release, "").unwrap();
    };
    let ((status, answer), ()) = tokio::join!(call, stop);
    assert_eq!((status, &answer["result"]["stdout"]), (200, &json!("done\n")), "{answer}");
    let ended = worker.wait(PATIENCE).await;
    assert_eq!(ended.code(), Some(0), "{}", worker.output().stderr);
    assert_eq!(plane.last_status(), "offline");
}

#[tokio::test]
async fn one_heartbeat_can_be_sent_alone() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let once = |refuses: bool| {
        plane.with(|seen| seen.refuses_beats = refuses);
        Child::spawn(worker(folder.path(), &plane, &["--once", "--worker-token", TOKEN]))
    };
    assert_eq!(once(false).wait(PATIENCE).await.code(), Some(0));
    let beat = plane.with(|seen| seen.beats.last().cloned().unwrap());
    assert_eq!((&beat["status"], &beat["providers"]), (&json!("online"), &json!(["process"])));
    assert!(beat["capacity"]["memory_mb"].as_u64().unwrap() > 0 && beat["capacity"]["vcpus"].as_u64().unwrap() > 0);
    assert_eq!(once(true).wait(PATIENCE).await.code(), Some(1));
}

#[tokio::test]
async fn a_worker_that_could_verify_nobody_does_not_start() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let mut child = Child::spawn(worker(folder.path(), &plane, &["--listen", "127.0.0.1:0"]));
    assert_eq!(child.wait(PATIENCE).await.code(), Some(2));
    let said = child.output().stderr;
    assert!(said.contains("nothing to verify"), "{said}");
    assert!(plane.with(|seen| seen.beats.is_empty()));
}

#[tokio::test]
async fn two_workers_do_not_share_a_folder() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let mut first = serving(folder.path(), &plane);
    plane.next_start(&Value::Null).await;
    let mut second = serving(folder.path(), &plane);
    assert_eq!(second.wait(PATIENCE).await.code(), Some(1));
    let said = second.output().stderr;
    assert!(said.contains("another worker uses the data folder"), "{said}");
    assert!(first.terminate().await.success());
}

#[tokio::test]
async fn a_rotated_token_is_accepted_without_a_restart() {
    let (folder, plane) = (tempfile::tempdir().unwrap(), Plane::start().await);
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let mut command = worker(folder.path(), &plane, &["--listen", "127.0.0.1:0"]);
    command.env("TENURE_AUTH__WORKER_TOKEN_FILE", &file);
    let mut child = Child::spawn(command);
    let rpc = Rpc::to(&plane.next_start(&Value::Null).await);
    let (status, _) = rpc.call("req-1", "worker.status", None, json!({"sandbox_id": "sb-1"})).await;
    assert_eq!(status, 404);
    let other = "fedcba9876543210fedcba9876543210";
    let with =
        async |token: &str| rpc.call_with(token, "req-2", "worker.status", None, json!({"sandbox_id": "sb-1"})).await.0;
    assert_eq!(with(other).await, 401);
    std::fs::write(&file, other).unwrap();
    wait_until("the new token is accepted", PATIENCE, async || with(other).await == 404).await;
    assert_eq!(with(TOKEN).await, 401);
    // An empty file is a mistake: what was valid stays so.
    std::fs::write(&file, "").unwrap();
    child.wait_for_stderr("could not be reloaded", PATIENCE).await;
    assert_eq!(with(other).await, 404);
    assert!(child.terminate().await.success());
}
