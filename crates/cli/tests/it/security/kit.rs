//! A server with a configuration of its own, and calls to it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_testkit::{Child, Output, Tenure, wait_until};

/// How long something may take that takes seconds at most on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const ADMIN_KEY: &str = "admin-key-of-these-tests-0123456789";
pub const API_KEY: &str = "api-key-of-these-tests-0123456789ab";

/// A folder with the files of a configuration.
pub struct Desk(TempDir);

impl Desk {
    pub fn new() -> Self {
        Self(TempDir::with_prefix("tenure-security-").unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn name(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Writes a file so that it is there as a whole or not at all.
    pub fn file(&self, name: &str, text: &str) -> String {
        let (new, path) = (self.path(&format!("{name}.new")), self.path(name));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, path).unwrap();
        self.name(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Tenure::command(args);
        command.current_dir(self.0.path()).env("HOME", self.0.path()).env("NO_COLOR", "1").env_remove("RUST_LOG");
        command
    }

    pub async fn run(&self, args: &[&str]) -> Output {
        finish(self.command(args)).await
    }

    /// Runs a command that has to succeed, and returns what it prints.
    pub async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(code(&output), 0, "{args:?}: {output:?}");
        output.stdout
    }

    /// Makes `tenure.yaml` and starts a server with it.
    pub async fn serve(&self, yaml: &str) -> Tenure {
        self.serve_with(yaml, &[], |_| {}).await
    }

    pub async fn serve_with(&self, yaml: &str, args: &[&str], adjust: impl FnOnce(&mut Command)) -> Tenure {
        let config = self.file("tenure.yaml", yaml);
        let folder = self.0.path();
        Tenure::serve_with(&[&["--config", &config], args].concat(), |command| {
            command.current_dir(folder).env("HOME", folder).env_remove("RUST_LOG");
            adjust(command);
        })
        .await
    }

    /// Makes a CA and certificates in a folder of this name.
    pub async fn certs(&self, name: &str) {
        self.ok(&["dev-certs", name]).await;
    }
}

pub async fn finish(command: Command) -> Output {
    let mut child = Child::spawn(command);
    child.wait(PATIENCE).await;
    child.output()
}

pub fn code(output: &Output) -> i32 {
    output.status.and_then(|status| status.code()).unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

pub fn roots(ca_file: &Path) -> Vec<Certificate> {
    Certificate::from_pem_bundle(&std::fs::read(ca_file).unwrap()).unwrap()
}

/// Calls of one who holds certain credentials.
#[derive(Clone)]
pub struct Caller {
    http: Client,
    url: String,
    headers: Vec<(String, String)>,
}

/// Status, and the body as JSON or as a text.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub text: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Caller {
    pub fn new(url: &str) -> Self {
        Self::with(url, Client::builder().timeout(PATIENCE).build().unwrap())
    }

    pub fn with(url: &str, http: Client) -> Self {
        Self { http, url: url.to_owned(), headers: Vec::new() }
    }

    /// The same caller with one more header.
    pub fn header(&self, name: &str, value: &str) -> Self {
        let mut other = self.clone();
        other.headers.push((name.to_owned(), value.to_owned()));
        other
    }

    pub fn admin(&self) -> Self {
        self.header("X-Admin-API-Key", ADMIN_KEY)
    }

    pub fn user(&self) -> Self {
        self.header("X-API-Key", API_KEY)
    }

    /// A worker with this token.
    pub fn worker(&self, id: &str, token: &str) -> Self {
        self.header("X-Worker-ID", id).header("X-Worker-Token", token)
    }

    pub async fn try_call(&self, method: Method, path: &str, body: Option<String>) -> reqwest::Result<Said> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await?;
        Ok(Said { status: response.status().as_u16(), text: response.text().await? })
    }

    pub async fn get(&self, path: &str) -> Said {
        self.try_call(Method::GET, path, None).await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Said {
        self.try_call(Method::POST, path, Some(body.to_string())).await.unwrap()
    }

    /// Submits a task of the queue `q` that has to be taken, and returns its id.
    pub async fn submit(&self, operator: &str, payload: &Value) -> String {
        let task = json!({"queue": "q", "operator": operator, "payload": payload, "retry": {"initial_backoff_ms": 0}});
        let said = self.post("/api/v1/tasks", &task).await;
        assert_eq!(said.status, 201, "{said:?}");
        said.json()["task_id"].as_str().unwrap().to_owned()
    }

    /// Asks for a job of the queue `q`, without waiting for one.
    pub async fn claim(&self, id: &str) -> Said {
        self.post("/internal/worker/claim", &json!({"worker_id": id, "streams": ["q"], "max_wait_ms": 0})).await
    }

    pub async fn until(&self, task: &str, state: &str) -> Value {
        wait_until(&format!("task {task} is {state}"), PATIENCE, async || {
            let task = self.get(&format!("/api/v1/tasks/{task}")).await.json();
            (task["state"] == state).then_some(task)
        })
        .await
    }

    /// Waits until a task has ended, well or not.
    pub async fn until_ended(&self, task: &str) {
        wait_until(&format!("task {task} has ended"), PATIENCE, async || {
            let task = self.get(&format!("/api/v1/tasks/{task}")).await.json();
            matches!(task["state"].as_str(), Some("Succeeded" | "Failed" | "Canceled"))
        })
        .await;
    }

    /// A counter of `/metrics`; 0 if it is not there yet.
    pub async fn counter(&self, name: &str) -> u64 {
        let said = self.get("/metrics").await;
        assert_eq!(said.status, 200, "{said:?}");
        let values = said.text.lines().filter_map(|line| line.split_once(' '));
        values.filter(|(series, _)| *series == name).map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    }
}
