use std::sync::Arc;

use tenure_tls::LiveServer;

use super::budget::Budget;
use super::credentials::Credentials;
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
        let budget = Budget::new(settings.memory_bytes);
        Ok(Self { node, credentials, tls, settings, budget, replay: Arc::new(replay), snapshots })
    }

    pub(super) fn worker_id(&self) -> &str {
        self.node.worker_id()
    }
}
