//! Sandboxes: places on the machines of workers in which code runs apart from everything else.
//!
//! ```no_run
//! # async fn example() -> Result<(), tenure_client::ClientError> {
//! use tenure_client::sandboxes::types::SandboxWrite;
//!
//! let client = tenure_client::Client::new("http://127.0.0.1:7423")?;
//! let sandbox = client.sandboxes().create(&SandboxWrite { image: Some("python".into()), ..Default::default() }).await?;
//! let answer = sandbox.run("python3 -c 'print(6 * 7)'").await?;
//! assert_eq!((answer.exit_code, answer.stdout.as_str()), (0, "42\n"));
//! sandbox.destroy().await?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod exec;
mod files;
mod fleet;
mod handle;
mod socket;
mod templates;

use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;
pub use tenure_contract::sandboxes as types;
use tenure_contract::sandboxes::{Admission, Pruned, SandboxState, SandboxWrite, Snapshot};
use tenure_contract::user::Page;

pub use exec::{ExecEvent, ExecStream};
pub use files::FileStream;
pub use handle::Sandbox;
pub use socket::{ExecInput, ExecOutput};

use crate::client::{Call, Client};
use crate::error::ClientError;
use crate::filter;

/// Creating a sandbox may wait for room, and then for its worker.
const CREATE_TIMEOUT: Duration = Duration::from_secs(180);

impl Client {
    /// The sandboxes of the control plane.
    pub fn sandboxes(&self) -> Sandboxes {
        Sandboxes { client: self.clone() }
    }
}

/// The sandboxes of a control plane, their snapshots and templates, and the workers that have them.
#[derive(Debug, Clone)]
pub struct Sandboxes {
    client: Client,
}

/// Filter of [`Sandboxes::list`].
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    pub state: Option<SandboxState>,
    /// Default: all of them, up to 10,000.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Sandboxes {
    /// Creates a sandbox and waits until it runs. Repeated when no answer comes, without creating a second one.
    pub async fn create(&self, sandbox: &SandboxWrite) -> Result<Sandbox, ClientError> {
        self.post(sandbox, true).await
    }

    /// Asks for a sandbox and does not wait for it: it is `creating`, and perhaps waits for room.
    pub async fn request(&self, sandbox: &SandboxWrite) -> Result<Sandbox, ClientError> {
        self.post(sandbox, false).await
    }

    async fn post(&self, sandbox: &SandboxWrite, wait: bool) -> Result<Sandbox, ClientError> {
        let mut url = self.client.url(&["sandboxes"]);
        filter::write(&mut url, &[("wait", &(!wait).then(|| "false".to_owned()))]);
        let call = Call::new(Method::POST, url).json(sandbox)?.header("idempotency-key", fresh_key()?);
        let info = self.client.call(call.repeatable(true).timeout(CREATE_TIMEOUT)).await?;
        Ok(self.handle(info))
    }

    /// Whether a sandbox would be created now, and if not, why.
    pub async fn admission(&self, sandbox: &SandboxWrite, explain: bool) -> Result<Admission, ClientError> {
        let mut url = self.client.url(&["sandboxes", "admission"]);
        filter::write(&mut url, &[("explain", &explain.then(|| "true".to_owned()))]);
        self.client.call(Call::new(Method::POST, url).json(sandbox)?.repeatable(true)).await
    }

    /// A sandbox that exists.
    pub async fn get(&self, sandbox_id: &str) -> Result<Sandbox, ClientError> {
        let info = self.client.call(Call::new(Method::GET, self.client.url(&["sandboxes", sandbox_id]))).await?;
        Ok(self.handle(info))
    }

    /// The handle of a sandbox that is known already, such as one of a list.
    pub fn handle(&self, info: types::Sandbox) -> Sandbox {
        Sandbox::new(self.client.clone(), info)
    }

    /// One page of sandboxes, newest first; `next_cursor` goes into the filter of the next.
    pub async fn list(&self, filter: &SandboxFilter) -> Result<Page<types::Sandbox>, ClientError> {
        let mut url = self.client.url(&["sandboxes"]);
        let (state, limit) = (filter::text(&filter.state), filter::text(&filter.limit));
        filter::write(&mut url, &[("state", &state), ("limit", &limit), ("cursor", &filter.cursor)]);
        self.page(Call::new(Method::GET, url)).await
    }

    /// Removes the sandboxes that have expired.
    pub async fn prune(&self) -> Result<u64, ClientError> {
        let pruned: Pruned = self.client.call(Call::new(Method::DELETE, self.client.url(&["sandboxes"]))).await?;
        Ok(pruned.pruned)
    }

    /// Destroys a sandbox. Calling it again is not an error. Returns `destroyed`, or `destroying` if its worker cannot be reached now.
    pub async fn destroy(&self, sandbox_id: &str) -> Result<String, ClientError> {
        let url = self.client.url(&["sandboxes", sandbox_id]);
        let outcome: types::Outcome =
            self.client.call(Call::new(Method::DELETE, url).timeout(Duration::from_secs(90))).await?;
        Ok(outcome.status)
    }

    /// The snapshots of the tenant, newest first.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["snapshots"]))).await
    }

    pub async fn snapshot(&self, snapshot_id: &str) -> Result<Snapshot, ClientError> {
        self.client.call(Call::new(Method::GET, self.client.url(&["snapshots", snapshot_id]))).await
    }

    pub async fn delete_snapshot(&self, snapshot_id: &str) -> Result<(), ClientError> {
        self.client.answer(&Call::new(Method::DELETE, self.client.url(&["snapshots", snapshot_id]))).await.map(drop)
    }

    /// A list in the form of a bare array.
    async fn page<T: DeserializeOwned>(&self, call: Call) -> Result<Page<T>, ClientError> {
        let answer = self.client.answer(&call).await?;
        let items = serde_json::from_slice(&answer.body)
            .map_err(|source| ClientError::Decode { operation: call.operation(), source })?;
        Ok(Page { items, next_cursor: answer.next_cursor.filter(|cursor| !cursor.is_empty()) })
    }
}

/// A name for one call: repeated under the same one, it is carried out once.
fn fresh_key() -> Result<String, ClientError> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| ClientError::Setup(format!("no random numbers: {error}")))?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}
