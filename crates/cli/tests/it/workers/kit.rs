//! A control plane, and workers as programs.
//!
//! A worker program is a command. It is told by its environment:
//!
//! | Variable | Meaning |
//! |---|---|
//! | `TENURE_URL` | the control plane; for one that is pushed to, the address that it may report to |
//! | `TENURE_QUEUE`, `TENURE_WORKER_TOKEN` | for one that pulls |
//! | `TENURE_LISTEN`, `TENURE_DISPATCH_SECRET` | for one that is pushed to: `address:port`, below it `/dispatch` |
//!
//! It prints a line `ready` when it can work, and has these operators. Their payload is an object with `trace`, a file
//! to which they append lines, and `go`, a file whose coming ends them.
//!
//! | Operator | What it does |
//! |---|---|
//! | `echo` | notes `start` if there is a trace, returns its payload |
//! | `block` | notes `start`, blocks its thread until `go` is there, notes `end`, returns `{"attempt","fence"}` |
//! | `hold` | the same without blocking, with a progress of 50; told to cancel it notes `cancel REASON` and stops as cancelled; when the lease is lost it notes `lost` |
//! | `finish` | notes `start`, waits until it is told to cancel, notes `cancel REASON` and returns `{"attempt","fence"}`; keeps that result if its payload has `keep` |
//! | `who` | returns `{"task_id"}` |
//! | `fail` | fails with the category that its payload has as `category` |
//! | `panic` | ends as badly as it can |
//! | `resume` | the first attempt saves the checkpoint `{"rows":5}` and fails with INFRASTRUCTURE; later ones return the checkpoint that they find |

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::{Child, Port, Tenure, wait_until};

use crate::workers::program;
use crate::workers::proxy::Proxy;

pub const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "a-secret-of-the-queue-and-its-worker";
/// The command of a Python worker, its words separated by spaces. Without it there is none to test.
const PYTHON: &str = "TENURE_TEST_PYTHON_WORKER";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    RustPush,
    RustPull,
    PythonPush,
    PythonPull,
}

impl Kind {
    fn is_pushed_to(self) -> bool {
        matches!(self, Self::RustPush | Self::PythonPush)
    }

    fn command(self) -> Option<Command> {
        match self {
            Self::RustPush => Some(program::command("push")),
            Self::RustPull => Some(program::command("pull")),
            Self::PythonPush | Self::PythonPull => {
                let words = std::env::var(PYTHON).ok()?;
                let mut words = words.split_whitespace();
                let mut command = Command::new(words.next()?);
                command.args(words);
                Some(command)
            }
        }
    }
}

/// A control plane that can be killed and started again, a queue for workers of one kind, and a link between them that
/// can lose answers.
pub struct Site {
    pub server: Option<Tenure>,
    pub proxy: Proxy,
    url: String,
    folder: TempDir,
    port: Port,
    worker_port: Port,
    kind: Kind,
    http: reqwest::Client,
}

impl Site {
    /// `None` if there is no such worker on this machine.
    pub async fn start(kind: Kind) -> Option<Self> {
        if kind.command().is_none() {
            eprintln!("{PYTHON} is not set: nothing is tested of the Python worker");
            return None;
        }
        let (port, worker_port) = (Port::reserve(), Port::reserve());
        let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port.number()))).await;
        let folder = tempfile::tempdir().unwrap();
        let config = match kind.is_pushed_to() {
            true => json!({"callback": {"base_url": proxy.url}, "push": {"secrets": {"etl": SECRET}}}),
            false => json!({}),
        };
        // JSON is YAML.
        std::fs::write(folder.path().join("tenure.yaml"), config.to_string()).unwrap();
        let mut site = Self {
            server: None,
            url: format!("http://127.0.0.1:{}", port.number()),
            proxy,
            folder,
            port,
            worker_port,
            kind,
            http: reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap(),
        };
        site.start_again().await;
        if kind.is_pushed_to() {
            let url = format!("http://127.0.0.1:{}/dispatch", site.worker_port.number());
            let push = json!({"url": url, "secret_ref": "etl", "ack_timeout_ms": 2000, "start_timeout_ms": 3000});
            let settings = site.http.put(format!("{}/api/v1/queues/q", site.url)).json(&json!({"push": push}));
            let answer = settings.send().await.unwrap();
            assert!(answer.status().is_success(), "{}", answer.text().await.unwrap());
        }
        Some(site)
    }

    pub async fn start_again(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port.number());
        let config = self.path("tenure.yaml");
        let args = ["--listen", &listen, "--config", config.to_str().unwrap()];
        self.server = Some(Tenure::serve_in(self.folder.path(), &args).await);
    }

    /// Ends the server as a crash would.
    pub fn kill_server(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Starts a worker, at the address that the one before it had.
    pub async fn worker(&self) -> Child {
        let mut command = self.kind.command().unwrap();
        let token = std::fs::read_to_string(self.path("worker-token")).unwrap();
        command.env("TENURE_URL", &self.proxy.url).env("TENURE_QUEUE", "q").env("TENURE_WORKER_TOKEN", token.trim());
        if self.kind.is_pushed_to() {
            command
                .env("TENURE_LISTEN", format!("127.0.0.1:{}", self.worker_port.number()))
                .env("TENURE_DISPATCH_SECRET", SECRET);
        }
        let mut worker = Child::spawn(command);
        worker.wait_for_stdout("ready", PATIENCE).await;
        worker
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The payload of operators that leave a trace.
    pub fn order(&self, name: &str) -> Value {
        json!({"trace": self.path(&format!("{name}.trace")), "go": self.path(&format!("{name}.go"))})
    }

    /// Lets an operator end.
    pub fn go(&self, name: &str) {
        std::fs::write(self.path(&format!("{name}.go")), "").unwrap();
    }

    /// What an operator has noted.
    pub fn trace(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(&format!("{name}.trace"))).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    pub async fn until_traced(&self, name: &str, line: &str) {
        let what = format!("{name} notes {line}");
        wait_until(&what, PATIENCE, async || self.trace(name).iter().any(|noted| noted == line)).await;
    }

    /// Submits with a lease that outlives a machine that stands still for a while, and retries at once.
    pub async fn submit(&self, operator: &str, payload: Value, more: Value) -> String {
        let mut task = json!({"queue": "q", "operator": operator, "payload": payload, "lease_ttl_seconds": 15,
            "retry": {"initial_backoff_ms": 0}});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.post("/api/v1/tasks", &task).await;
        answer["task_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.http.post(format!("{}{path}", self.url)).json(body).send().await.unwrap().json().await.unwrap()
    }

    pub async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }

    pub async fn task(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/tasks/{id}")).await
    }

    pub async fn attempts(&self, id: &str) -> Vec<Value> {
        self.get(&format!("/api/v1/tasks/{id}/attempts")).await["items"].as_array().unwrap().clone()
    }

    /// Waits until the task is in `state`, and gives it.
    pub async fn until(&self, id: &str, state: &str) -> Value {
        wait_until(&format!("task {id} is {state}"), PATIENCE, async || {
            let task = self.task(id).await;
            (task["state"] == state).then_some(task)
        })
        .await
    }
}
