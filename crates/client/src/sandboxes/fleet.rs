//! Workers of all contracts, for operators and admins.

use reqwest::Method;
use tenure_contract::sandboxes::{DrainRequest, PoolStatus, ProviderHealth, WorkerInfo};
use tenure_contract::user::Page;

use super::Sandboxes;
use crate::client::Call;
use crate::error::ClientError;
use crate::filter;

impl Sandboxes {
    /// All workers, by id: those that ask for tasks, those that call back, and those that hold sandboxes.
    pub async fn workers(&self) -> Result<Vec<WorkerInfo>, ClientError> {
        let (mut workers, mut cursor) = (Vec::new(), None);
        loop {
            let mut url = self.client.url(&["workers"]);
            filter::write(&mut url, &[("cursor", &cursor)]);
            let page: Page<WorkerInfo> = self.page(Call::new(Method::GET, url)).await?;
            workers.extend(page.items);
            match page.next_cursor {
                Some(next) if cursor.as_ref() != Some(&next) => cursor = Some(next),
                _ => return Ok(workers),
            }
        }
    }

    pub async fn worker(&self, worker_id: &str) -> Result<WorkerInfo, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["workers", worker_id]))).await
    }

    /// Lets a worker get no new work, tasks or sandboxes. It keeps what it has.
    pub async fn drain_worker(&self, worker_id: &str, reason: Option<&str>) -> Result<WorkerInfo, ClientError> {
        let url = self.client.url(&["workers", worker_id, "drain"]);
        let request = DrainRequest { reason: reason.map(ToOwned::to_owned) };
        self.client.call(Call::new(Method::POST, url).json(&request)?.repeatable(true)).await
    }

    pub async fn undrain_worker(&self, worker_id: &str) -> Result<WorkerInfo, ClientError> {
        let url = self.client.url(&["workers", worker_id, "undrain"]);
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
