//! A worker's listener, called as a control plane calls it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::http;

/// A lease that lasts for as long as anything here does.
const EXPIRES_AT: &str = "2100-01-01T00:00:00Z";
const TTL: &str = "1h";
const MEMORY_MB: u64 = 256;

/// Where a worker listens, and what lets a caller in.
#[derive(Debug)]
pub struct RpcTarget {
    http: http::Target,
    worker_id: String,
    provider: String,
    image: String,
    next: AtomicU64,
    /// Connections that nobody uses now. There are never more than callers.
    idle: Mutex<Vec<http::Connection>>,
}

impl RpcTarget {
    /// `url` is like `http://127.0.0.1:7430`.
    pub fn new(url: &str, token: &str, worker_id: &str, provider: &str, image: &str) -> Result<Self> {
        Ok(Self {
            http: http::Target::new(url, Some(token), None)?,
            worker_id: worker_id.to_owned(),
            provider: provider.to_owned(),
            image: image.to_owned(),
            next: AtomicU64::new(0),
            idle: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.provider
    }

    pub(super) fn image(&self) -> &str {
        &self.image
    }

    async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = idle().pop();
        let mut connection = match waiting {
            Some(connection) => connection,
            None => self.http.connect().await?,
        };
        let answer = connection.call(method, path, ("x-worker-id", &self.worker_id), body).await?;
        idle().push(connection);
        Ok(answer)
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    async fn call(&self, method: &str, leased: Option<&str>, params: Value) -> Result<Value> {
        let id = format!("req-bench-{}", self.next());
        let mut body = json!({"id": id, "method": method, "worker_id": self.worker_id, "params": params});
        if let Some(sandbox) = leased {
            body["lease"] = json!({"resource_id": sandbox, "holder_id": self.worker_id, "generation": 1,
                "expires_at": EXPIRES_AT});
        }
        let answer = self.send(Method::POST, "/rpc", body.to_string().into()).await?;
        let mut answer: Value = serde_json::from_slice(&answer).context("an answer is not JSON")?;
        ensure!(answer.get("error").is_none(), "{method} failed: {}", answer["error"]);
        Ok(answer["result"].take())
    }

    /// Returns the sandbox's id.
    pub(crate) async fn spawn(&self, room_mb: Option<u64>) -> Result<String> {
        let sandbox = format!("bench-{}-{}", std::process::id(), self.next());
        let mut params = json!({"sandbox_id": sandbox, "image": self.image, "provider": self.provider,
            "memory_mb": room_mb.map_or(MEMORY_MB, |room| room + MEMORY_MB), "vcpus": 1, "ttl": TTL});
        if let Some(room) = room_mb {
            params["disk_size_mb"] = room.into();
        }
        self.call("worker.spawn", Some(&sandbox), params).await?;
        Ok(sandbox)
    }

    fn of(&self, sandbox: &str) -> Value {
        json!({"sandbox_id": sandbox, "provider": self.provider})
    }

    pub(crate) async fn exec(&self, sandbox: &str) -> Result<()> {
        let mut params = self.of(sandbox);
        params["command"] = "true".into();
        params["mode"] = "argv".into();
        let result = self.call("worker.exec", None, params).await?;
        ensure!(result["exit_code"] == 0, "`true` ended with {}", result["exit_code"]);
        Ok(())
    }

    pub(crate) async fn destroy(&self, sandbox: &str) -> Result<()> {
        self.call("worker.destroy", Some(sandbox), self.of(sandbox)).await.map(drop)
    }

    fn file(&self, sandbox: &str) -> String {
        let (provider, file) = (&self.provider, super::target::FILE);
        format!("/rpc/files?sandbox_id={sandbox}&provider={provider}&path={file}")
    }

    pub(super) async fn write(&self, sandbox: &str, content: Bytes) -> Result<()> {
        self.send(Method::PUT, &self.file(sandbox), content).await.map(drop)
    }

    pub(super) async fn read(&self, sandbox: &str) -> Result<usize> {
        Ok(self.send(Method::GET, &self.file(sandbox), Bytes::new()).await?.len())
    }
}
