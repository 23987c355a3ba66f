//! A server process with a port that outlives it, and the calls of a bare worker.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::{Child, Port, Tenure, wait_until};

pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server that can be killed and started again at the same address on the same data.
pub struct Site {
    pub server: Option<Tenure>,
    pub url: String,
    pub folder: TempDir,
    port: Port,
    store: Option<String>,
    more: Vec<String>,
    http: reqwest::Client,
}

impl Site {
    pub async fn start(store: Option<&str>) -> Self {
        Self::start_with(tempfile::tempdir().unwrap(), store, &[]).await
    }

    /// Another server on the same Postgres. It lets the same workers in, although nobody told it which.
    pub async fn beside(other: &Self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = Self::start_with(folder, other.store.as_deref(), &[]).await;
        let token = |site: &Self| std::fs::read_to_string(site.path("worker-token")).unwrap();
        assert_eq!(token(&site), token(other), "replicas share a worker token");
        site
    }

    /// With more arguments, also when it is started again.
    pub async fn start_with(folder: TempDir, store: Option<&str>, more: &[&str]) -> Self {
        let port = Port::reserve();
        let mut site = Self {
            server: None,
            url: format!("http://127.0.0.1:{}", port.number()),
            folder,
            port,
            store: store.map(ToOwned::to_owned),
            more: more.iter().map(|arg| (*arg).to_owned()).collect(),
            http: reqwest::Client::builder().timeout(Duration::from_secs(60)).build().unwrap(),
        };
        site.start_again().await;
        site
    }

    pub async fn start_again(&mut self) {
        let listen = format!("127.0.0.1:{}", self.port.number());
        let mut args = vec!["--listen", listen.as_str()];
        if let Some(store) = &self.store {
            args.extend(["--store", store]);
        }
        args.extend(self.more.iter().map(String::as_str));
        self.server = Some(Tenure::serve_in(self.folder.path(), &args).await);
    }

    pub fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Ends the server as a crash would.
    pub fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    pub fn token(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("worker-token")).unwrap().trim().to_owned()
    }

    /// Starts `tenure worker` on queue `q`.
    pub fn worker(&self, args: &[&str]) -> Child {
        let mut command: Command = Tenure::command(&["worker", "--server", &self.url, "--queue", "q"]);
        command.arg("--token-file").arg(self.folder.path().join("worker-token")).args(args);
        Child::spawn(command)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends a request with a body, or a GET without one.
    pub async fn request(&self, path: &str, body: Option<&Value>) -> reqwest::Result<reqwest::Response> {
        let url = format!("{}{path}", self.url);
        let request = match body {
            Some(body) => self.http.post(url).json(body),
            None => self.http.get(url),
        };
        request.header("X-Worker-Token", self.token()).send().await
    }

    /// How much memory the server has, in bytes.
    pub fn memory(&self) -> u64 {
        let id = self.server.as_ref().unwrap().pid();
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.request(path, Some(body)).await.unwrap();
        let status = response.status().as_u16();
        (status, response.json().await.unwrap_or_default())
    }

    pub async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().json().await.unwrap()
    }

    pub async fn text(&self, path: &str) -> String {
        self.http.get(format!("{}{path}", self.url)).send().await.unwrap().text().await.unwrap()
    }

    pub async fn submit(&self, operator: &str, extra: Value) -> String {
        let mut task = json!({"queue": "q", "operator": operator, "lease_ttl_seconds": 1,
            "retry": {"initial_backoff_ms": 0}});
        if let (Value::Object(task), Value::Object(extra)) = (&mut task, extra) {
            task.extend(extra);
        }
        let (status, answer) = self.post("/api/v1/tasks", &task).await;
        assert_eq!(status, 201, "{answer}");
        answer["task_id"].as_str().unwrap().to_owned()
    }

    /// Submits `count` tasks that each hold a lease of an hour, and gives their ids.
    pub async fn submit_many(&self, count: usize, operator: &str) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let size = (count - ids.len()).min(5_000);
            let task = json!({"queue": "q", "operator": operator, "payload": {"ms": 1}, "lease_ttl_seconds": 3600});
            let (status, answer) = self.post("/api/v1/tasks/batch", &json!({"tasks": vec![task; size]})).await;
            assert_eq!(status, 200, "{answer}");
            let tasks = answer["tasks"].as_array().unwrap();
            ids.extend(tasks.iter().map(|task| task["task_id"].as_str().unwrap().to_owned()));
        }
        ids
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
