//! The user API of the control plane, as a client uses it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use super::LOOK;
use crate::http;

/// Small, so that room for memory never decides.
const MEMORY_MB: u64 = 32;
const TTL: &str = "1h";

#[derive(Debug, Clone)]
pub struct Api {
    target: http::Target,
    provider: String,
    image: String,
    /// Connections that nobody uses now. There are never more than callers.
    idle: Arc<Mutex<Vec<http::Connection>>>,
}

impl Api {
    pub fn new(target: &http::Target, provider: &str, image: &str) -> Self {
        let (provider, image) = (provider.to_owned(), image.to_owned());
        Self { target: target.clone(), provider, image, idle: Arc::default() }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle().pop();
        let mut connection = match waiting {
            Some(connection) => connection,
            None => self.target.connect().await?,
        };
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = connection.call(method, path, ("accept", "application/json"), body).await?;
        idle().push(connection);
        match answer.is_empty() {
            true => Ok(Value::Null),
            false => serde_json::from_slice(&answer).context("an answer is not JSON"),
        }
    }

    /// Creates a sandbox and waits until it runs. Returns its id.
    pub async fn create(&self, mut asked: Value) -> Result<String> {
        if asked.get("template").is_none() {
            asked = json!({"image": self.image, "provider": self.provider, "memory_mb": MEMORY_MB, "vcpus": 1,
                "ttl": TTL});
        }
        let sandbox = self.send(Method::POST, "/api/v1/sandboxes", Some(&asked)).await?;
        ensure!(sandbox["state"] == "running", "a sandbox was answered that is {}", sandbox["state"]);
        Ok(sandbox["id"].as_str().context("a sandbox without an id")?.to_owned())
    }

    pub async fn exec(&self, sandbox: &str) -> Result<()> {
        let asked = json!({"command": "true", "mode": "argv"});
        let result = self.send(Method::POST, &format!("/api/v1/sandboxes/{sandbox}/exec"), Some(&asked)).await?;
        ensure!(result["exit_code"] == 0, "`true` ended with {}", result["exit_code"]);
        Ok(())
    }

    pub async fn destroy(&self, sandbox: &str) -> Result<()> {
        self.send(Method::DELETE, &format!("/api/v1/sandboxes/{sandbox}"), None).await.map(drop)
    }

    /// A template with a pool of this many warm sandboxes.
    pub async fn put_template(&self, name: &str, pool: usize) -> Result<()> {
        let template = json!({"name": name, "image": self.image, "provider": self.provider, "memory_mb": MEMORY_MB,
            "cpu_cores": 1, "ttl_seconds": 3600, "pool_size": pool});
        self.send(Method::POST, "/api/v1/templates", Some(&template)).await.map(drop)
    }

    pub async fn delete_template(&self, name: &str) -> Result<()> {
        self.send(Method::DELETE, &format!("/api/v1/templates/{name}"), None).await.map(drop)
    }

    /// Waits until as many workers are online.
    pub async fn wait_for_workers(&self, wanted: usize, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let workers = self.send(Method::GET, "/api/v1/workers", None).await?;
            let online = workers.as_array().into_iter().flatten().filter(|worker| worker["status"] == "online");
            let online = online.count();
            if online >= wanted {
                return Ok(());
            }
            ensure!(begun.elapsed() < patience, "{online} of {wanted} workers have come");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the warm sandboxes are as they should be. Returns their ids.
    pub async fn wait_for_idle(
        &self,
        what: &str,
        patience: Duration,
        is_right: impl Fn(&[String]) -> bool,
    ) -> Result<Vec<String>> {
        let begun = Instant::now();
        loop {
            let listed = self.send(Method::GET, "/api/v1/sandboxes?state=idle&limit=100", None).await?;
            let ids = listed.as_array().into_iter().flatten().filter_map(|sandbox| sandbox["id"].as_str());
            let ids: Vec<String> = ids.map(ToOwned::to_owned).collect();
            if is_right(&ids) {
                return Ok(ids);
            }
            ensure!(begun.elapsed() < patience, "waited too long for {what}: {} sandboxes are warm", ids.len());
            tokio::time::sleep(LOOK).await;
        }
    }
}
