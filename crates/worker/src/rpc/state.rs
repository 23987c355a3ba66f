use std::sync::Arc;

use tenure_contract::worker_rpc::Code;
use tenure_tls::LiveServer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::Budget;
use super::credentials::Credentials;
use super::refusal::Refusal;
use super::replay::Replay;
use super::settings::RpcSettings;
use super::snapshots::Snapshots;
use crate::node::Node;

/// What serves the calls of control planes.
#[derive(Debug)]
pub struct Rpc {
    pub(super) node: Arc<Node>,
    pub(super) credentials: Arc<Credentials>,
    pub(super) tls: Option<Arc<LiveServer>>,
    pub(super) settings: RpcSettings,
    pub(super) budget: Budget,
    pub(super) replay: Arc<Replay>,
    pub(super) snapshots: Snapshots,
    /// Connections that were upgraded, which the listener does not count any more.
    sessions: Arc<Semaphore>,
}

/// Why a listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "this worker listens for control planes but has nothing to verify them with: set auth.worker_token, \
         auth.worker_tokens, auth.worker_signing_key or auth.worker_public_keys, or remove worker.listen_addr"
    )]
    NoCredentials,
    #[error("the folder for snapshots cannot be used")]
    Snapshots(#[source] std::io::Error),
}

impl Rpc {
    /// Certificates of `tls` may be swapped while it serves.
    pub fn new(
        node: Arc<Node>,
        credentials: Arc<Credentials>,
        tls: Option<Arc<LiveServer>>,
        settings: RpcSettings,
    ) -> Result<Self, StartError> {
        if !credentials.can_verify() {
            return Err(StartError::NoCredentials);
        }
        let snapshots = Snapshots::open(&settings.data_dir, settings.snapshot_bytes).map_err(StartError::Snapshots)?;
        let replay = Replay::new(&settings, node.holdings().answers());
        let (budget, replay) = (Budget::new(settings.memory_bytes), Arc::new(replay));
        let sessions = Arc::new(Semaphore::new(settings.max_connections));
        Ok(Self { node, credentials, tls, settings, budget, replay, snapshots, sessions })
    }

    /// Room for an upgraded connection, for as long as the permit lives.
    pub(super) fn session(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.sessions).try_acquire_owned().map_err(|_| {
            Refusal::call(Code::ProviderUnavailable, "this worker has as many open sessions as it may: close one first")
        })
    }

    pub(super) fn worker_id(&self) -> &str {
        self.node.worker_id()
    }
}
