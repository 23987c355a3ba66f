//! The workers that have the sandboxes, for operators and admins.

use reqwest::Method;
use tenure_contract::sandboxes::{DrainRequest, PoolStatus, ProviderHealth, WorkerInfo};

use super::Sandboxes;
use crate::client::Call;
use crate::error::ClientError;

impl Sandboxes {
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["workers"]))).await
    }

    pub async fn worker(&self, worker_id: &str) -> Result<WorkerInfo, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["workers", worker_id]))).await
    }

    /// Lets a worker accept no new sandboxes. It keeps those that it has.
    pub async fn drain_worker(&self, worker_id: &str, reason: Option<&str>) -> Result<WorkerInfo, ClientError> {
        let url = self.client.url(&["admin", "workers", worker_id, "drain"]);
        let request = DrainRequest { reason: reason.map(ToOwned::to_owned) };
        self.client.call(Call::new(Method::POST, url).json(&request)?.repeatable(true)).await
    }

    pub async fn undrain_worker(&self, worker_id: &str) -> Result<WorkerInfo, ClientError> {
        let url = self.client.url(&["admin", "workers", worker_id, "undrain"]);
        self.client.call(Call::new(Method::POST, url).json(&DrainRequest::default())?.repeatable(true)).await
    }

    /// Removes a worker that does not return. A live one is back with its next heartbeat.
    pub async fn remove_worker(&self, worker_id: &str) -> Result<(), ClientError> {
        let url = self.client.url(&["admin", "workers", worker_id]);
        self.client.answer(&Call::new(Method::DELETE, url)).await.map(drop)
    }

    pub async fn providers(&self) -> Result<Vec<ProviderHealth>, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["providers"]))).await
    }

    pub async fn pool_status(&self) -> Result<PoolStatus, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["pool", "status"]))).await
    }
}
