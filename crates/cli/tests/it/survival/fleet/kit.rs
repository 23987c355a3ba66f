//! Control planes, workers that hold sandboxes, and what stands between them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::{Child, Port, Tenure, wait_until};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::survival::kit::{PATIENCE, Site};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A control plane with these caps.
pub async fn plane(store: Option<&str>, max_sandboxes: u64, per_owner: u64) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenure.yaml");
    let text = json!({
        "auth": {"worker_token": TOKEN},
        "defaults": {"max_sandboxes": max_sandboxes, "max_sandboxes_per_owner": per_owner},
        "providers": {"default": "process", "namespace": {"enabled": false}, "process": {"enabled": true}},
        "scheduler": {"freshness": "30s"},
        "worker": {"spawn_timeout": "50s"},
    });
    std::fs::write(&config, text.to_string()).unwrap();
    Site::start_with(folder, store, &["--config", config.to_str().unwrap()]).await
}

/// Another one on the same Postgres.
pub async fn plane_beside(other: &Site) -> Site {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tenure.yaml");
    std::fs::copy(other.path("tenure.yaml"), &config).unwrap();
    Site::start_with(folder, other.store(), &["--config", config.to_str().unwrap()]).await
}

/// A worker that can be killed and started again with what it holds.
pub struct Node {
    pub id: &'static str,
    pub child: Option<Child>,
    pub folder: TempDir,
    port: Port,
    plane: String,
    /// Where control planes reach it, if not directly.
    advertised: Option<String>,
    room: u64,
}

impl Node {
    pub fn new(id: &'static str, plane: &str, room: u64) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        Self { id, child: None, folder, port, plane: plane.to_owned(), advertised: None, room }
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port.number())
    }

    pub fn behind(mut self, gate: &Gate) -> Self {
        self.advertised = Some(gate.url.clone());
        self
    }

    pub fn start(&mut self) {
        let mut command = Tenure::command(&["worker", "--id", self.id, "--worker-token", TOKEN]);
        let advertised = self.advertised.clone().unwrap_or_else(|| self.address());
        command.args(["--control-plane", &self.plane, "--advertise-url", &advertised]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port.number()), "--heartbeat-interval", "200ms"]);
        command.arg("--data").arg(self.folder.path()).arg("--data-dir").arg(self.folder.path().join("node"));
        command
            .env("TENURE_WORKER__CAPACITY__MAX_SANDBOXES", self.room.to_string())
            // Whatever machine this is.
            .env("TENURE_WORKER__CAPACITY__MEMORY_MB", "65536")
            .env("TENURE_WORKER__CAPACITY__VCPUS", "64")
            .env("TENURE_PROVIDERS__NAMESPACE__ENABLED", "false")
            .env("TENURE_PROVIDERS__PROCESS__ENABLED", "true")
            .env("TENURE_PROVIDERS__DEFAULT", "process");
        self.child = Some(Child::spawn(command));
    }

    pub fn kill(&mut self) {
        self.child.take().unwrap().kill();
    }

    /// Ids of the runtimes on its disk, past everything that it says itself.
    pub fn runtimes(&self) -> Vec<String> {
        let folder = self.folder.path().join("node/process");
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("prc-")).collect();
        names.sort();
        names
    }

    pub async fn has_nothing(&self) {
        wait_until(&format!("{} has nothing", self.id), PATIENCE, async || self.runtimes().is_empty()).await;
    }
}

/// Waits until a control plane has heard of all workers.
pub async fn all_online(site: &Site, count: usize) {
    wait_until("all workers are online", PATIENCE, async || {
        let workers = site.get("/api/v1/workers").await;
        let online = |worker: &&Value| worker["status"] == "online" && worker["stale"] == false;
        workers.as_array().is_some_and(|workers| workers.iter().filter(online).count() == count)
    })
    .await;
}

/// How a request may be held up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Before the worker gets it.
    Request,
    /// After the worker has done it.
    Answer,
}

#[derive(Debug, Default)]
struct Held {
    hold: Option<Hold>,
    /// How many were held up so far.
    reached: usize,
    /// Spawns that came by.
    spawns: usize,
    /// How the worker answered them.
    answers: Vec<u16>,
}

/// Stands before a worker, and holds `worker.spawn` up when it is told to.
#[derive(Debug, Clone)]
pub struct Gate {
    pub url: String,
    upstream: Arc<Mutex<String>>,
    held: Arc<Mutex<Held>>,
    open: Arc<Notify>,
    http: reqwest::Client,
}

impl Gate {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (upstream, held, open) = Default::default();
        let gate = Self { url, upstream, held, open, http: reqwest::Client::new() };
        let app = Router::new().fallback(pass).with_state(gate.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        gate
    }

    pub fn before(&self, node: &Node) {
        *self.upstream.lock().unwrap() = node.address();
    }

    pub fn hold(&self, hold: Hold) {
        let mut held = self.held.lock().unwrap();
        (held.hold, held.reached) = (Some(hold), 0);
    }

    /// Waits until a spawn is held up.
    pub async fn reached(&self) {
        wait_until("a spawn is held up", PATIENCE, async || self.held.lock().unwrap().reached > 0).await;
    }

    pub fn spawns(&self) -> usize {
        self.held.lock().unwrap().spawns
    }

    /// How the worker answered spawns so far. 0: not at all.
    pub fn answers(&self) -> Vec<u16> {
        self.held.lock().unwrap().answers.clone()
    }

    pub fn release(&self) {
        self.held.lock().unwrap().hold = None;
        self.open.notify_waiters();
    }

    /// Returns when nothing is held up here.
    async fn wait(&self, at: Hold) {
        loop {
            let opened = self.open.notified();
            {
                let mut held = self.held.lock().unwrap();
                if held.hold != Some(at) {
                    return;
                }
                held.reached += 1;
            }
            opened.await;
        }
    }

    async fn forward(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body = to_bytes(body, 8 << 20).await.unwrap();
        let is_spawn = serde_json::from_slice::<Value>(&body).is_ok_and(|body| body["method"] == "worker.spawn");
        if is_spawn {
            self.held.lock().unwrap().spawns += 1;
            self.wait(Hold::Request).await;
        }
        let url = format!("{}{}", self.upstream.lock().unwrap(), head.uri);
        let sent = self.http.request(head.method, url).headers(head.headers).body(body).send().await;
        let answer = match sent {
            Ok(answer) => {
                let (status, mut headers) = (answer.status(), answer.headers().clone());
                // They are about the connection to the worker.
                for name in ["transfer-encoding", "connection"] {
                    headers.remove(name);
                }
                answer.bytes().await.map(|body| (status, headers, Body::from(body)).into_response()).ok()
            }
            Err(_) => None,
        };
        if is_spawn {
            let status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            self.held.lock().unwrap().answers.push(status);
            self.wait(Hold::Answer).await;
        }
        answer.unwrap_or_else(broken)
    }
}

/// A connection that breaks before it has said anything.
fn broken() -> Response {
    let nothing = futures_util::stream::iter([Err::<&[u8], _>(std::io::Error::other("broken"))]);
    Body::from_stream(nothing).into_response()
}

/// Goes on when the caller is gone: what was sent arrives.
async fn pass(State(gate): State<Gate>, request: Request) -> Response {
    tokio::spawn(async move { gate.forward(request).await }).await.unwrap()
}

/// One address for several control planes.
pub async fn balance(upstreams: Vec<SocketAddr>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for turn in 0.. {
            let Ok((mut client, _)) = listener.accept().await else { return };
            let mut upstreams = upstreams.clone();
            let first = turn % upstreams.len();
            upstreams.rotate_left(first);
            tokio::spawn(async move {
                if let Ok(mut server) = TcpStream::connect(upstreams.as_slice()).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                }
            });
        }
    });
    url
}

/// A user who tries again.
#[derive(Debug, Clone)]
pub struct User {
    pub urls: Vec<String>,
    pub owner: String,
    http: reqwest::Client,
}

impl User {
    pub fn new(urls: Vec<String>, owner: &str) -> Self {
        let http = reqwest::Client::builder().timeout(PATIENCE).build().unwrap();
        Self { urls, owner: owner.to_owned(), http }
    }

    fn request(&self, method: &str, turn: usize, path: &str, body: Option<&Value>) -> reqwest::RequestBuilder {
        let url = format!("{}/api/v1/sandboxes{path}", self.urls[turn % self.urls.len()]);
        let request = self.http.request(method.parse().unwrap(), url).header("X-User-ID", &self.owner);
        match body {
            Some(body) => request.json(body),
            None => request,
        }
    }

    /// One request to one control plane. `None`: there was no answer.
    pub async fn once(&self, method: &str, turn: usize, path: &str, body: Option<&Value>) -> Option<(u16, Vec<u8>)> {
        let answer = self.request(method, turn, path, body).send().await.ok()?;
        let status = answer.status().as_u16();
        Some((status, answer.bytes().await.ok()?.to_vec()))
    }

    /// Asks all control planes in turn until one of them knows.
    pub async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Vec<u8>) {
        let turn = std::sync::atomic::AtomicUsize::new(0);
        wait_until(&format!("an answer to {method} {path}"), PATIENCE, async || {
            let turn = turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            self.once(method, turn, path, body).await.filter(|(status, _)| *status < 500 && *status != 409)
        })
        .await
    }

    pub async fn create_once(&self, turn: usize, key: &str, ttl: &str) -> Option<(u16, Value)> {
        let body = json!({"image": "host", "memory_mb": 16, "ttl": ttl, "metadata": {"key": key}});
        let sent = self.request("POST", turn, "", Some(&body)).header("Idempotency-Key", key).send().await.ok()?;
        let status = sent.status().as_u16();
        Some((status, sent.json().await.ok()?))
    }

    /// Creates a sandbox, with the same key until there is one.
    pub async fn create(&self, key: &str, ttl: &str) -> Value {
        let turn = std::sync::atomic::AtomicUsize::new(0);
        wait_until(&format!("a sandbox for {key}"), PATIENCE, async || {
            let turn = turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let created = self.create_once(turn, key, ttl).await;
            created.filter(|(status, row)| *status == 201 && row["state"] == "running").map(|(_, row)| row)
        })
        .await
    }

    /// Where a command runs: the runtime.
    pub async fn runtime(&self, id: &str) -> String {
        let (status, answer) = self.ask("POST", &format!("/{id}/exec"), Some(&json!({"command": "pwd"}))).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        assert_eq!((status, &answer["exit_code"]), (200, &json!(0)), "{answer}");
        let runtime = answer["stdout"].as_str().unwrap().split('/').find(|part| part.starts_with("prc-"));
        runtime.unwrap_or_else(|| panic!("no runtime in {answer}")).to_owned()
    }

    pub async fn write(&self, id: &str, path: &str, content: &str) {
        let (status, answer) =
            self.ask("POST", &format!("/{id}/files"), Some(&json!({"path": path, "content": content}))).await;
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    }

    pub async fn read(&self, id: &str, path: &str) -> String {
        let (status, answer) = self.ask("GET", &format!("/{id}/files?path={path}"), None).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub async fn destroy(&self, id: &str) {
        let (status, answer) = self.ask("DELETE", &format!("/{id}"), None).await;
        assert!(status == 200 || status == 202, "{status} {}", String::from_utf8_lossy(&answer));
    }

    pub async fn list(&self) -> Vec<Value> {
        let (status, answer) = self.ask("GET", "", None).await;
        assert_eq!(status, 200);
        serde_json::from_slice(&answer).unwrap()
    }
}

pub fn text<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_else(|| panic!("no {name} in {row}"))
}

/// Where processes run in the folders of these workers.
pub fn processes(nodes: &[&Node]) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = nodes.iter().map(|node| node.folder.path().canonicalize().unwrap()).collect();
    let inside = |path: &Path| folders.iter().any(|folder| path.starts_with(folder));
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok()).filter(|cwd| inside(cwd)).collect()
}
