//! Workers, as admins see them.

use std::time::Duration;

use serde_json::json;
use tenure_core::sandbox::placement::{Usage, Worker};

use super::{SandboxError, Sandboxes, system_event};

const DRAIN_WITHIN: Duration = Duration::from_secs(10);

/// The worker inside `tenure up`. Its row is kept when it is removed.
const LOCAL: &str = "local";

impl Sandboxes {
    /// By id.
    pub async fn sandbox_workers(&self) -> Result<Vec<Worker>, SandboxError> {
        Ok(self.rows().sandbox_workers().await?)
    }

    pub async fn sandbox_worker(&self, id: &str) -> Result<Worker, SandboxError> {
        let worker = self.rows().sandbox_worker(id).await?;
        worker.ok_or_else(|| SandboxError::not_found("worker", id))
    }

    /// What is in use on each of these workers.
    pub async fn usage_of(&self, workers: &[Worker]) -> Result<Vec<Usage>, SandboxError> {
        let (fleet, _) = self.rows().fleet("", None).await?;
        Ok(workers.iter().map(|worker| fleet.used_on(worker)).collect())
    }

    /// Whether the last heartbeat of a worker is too old.
    pub async fn is_stale(&self, worker: &Worker) -> Result<bool, SandboxError> {
        Ok(worker.is_stale(self.settings().freshness_ms, self.now().await?))
    }

    /// Lets no new sandbox go to a worker. It keeps what it has. The wish is stored, sent, and repeated in the answers to its
    /// heartbeats.
    pub async fn drain(&self, id: &str, reason: Option<&str>) -> Result<Worker, SandboxError> {
        let worker = self.desire(id, "draining", reason).await?;
        self.record(vec![system_event("worker.draining", json!({"worker": id, "reason": reason}))]).await;
        if let Some(target) = self.target(&worker) {
            let terms = self.terms(None, DRAIN_WITHIN);
            if let Err(error) = Self::within(&terms, self.workers().shutdown(&target, &terms)).await {
                tracing::info!(worker.id = id, "a drain will reach the worker with its next heartbeat: {error}");
            }
        }
        Ok(worker)
    }

    pub async fn undrain(&self, id: &str) -> Result<Worker, SandboxError> {
        let worker = self.desire(id, "online", None).await?;
        self.record(vec![system_event("worker.online", json!({"worker": id, "reason": "undrained"}))]).await;
        if let Some(target) = self.target(&worker).filter(|target| target.can("undrain")) {
            let terms = self.terms(None, DRAIN_WITHIN);
            if let Err(error) = Self::within(&terms, self.workers().undrain(&target, &terms)).await {
                tracing::info!(worker.id = id, "an undrain will reach the worker with its next heartbeat: {error}");
            }
        }
        self.inner.room.notify_one();
        Ok(worker)
    }

    async fn desire(&self, id: &str, status: &str, reason: Option<&str>) -> Result<Worker, SandboxError> {
        let worker = self.rows().desire_worker(id, status, reason).await?;
        worker.ok_or_else(|| SandboxError::not_found("worker", id))
    }

    /// Removes a worker's row. A live worker returns with its next heartbeat.
    pub async fn remove_worker(&self, id: &str) -> Result<(), SandboxError> {
        let removed = self.rows().remove_worker(id, id == LOCAL).await?;
        if removed { Ok(()) } else { Err(SandboxError::not_found("worker", id)) }
    }
}
