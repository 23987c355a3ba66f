//! The part of the server that DAGs and the dispatch contract need.

mod bundles;
pub mod credentials;
mod fault;
mod lambda;
pub mod render;
mod secrets;

pub(crate) use bundles::unavailable as object_store_down;
pub use bundles::{Uploads, ZIP};
pub use credentials::{CredentialBackend, CredentialBroker};
pub use fault::DispatchFault;
pub(crate) use fault::status_of;
pub use lambda::{LambdaCourier, LambdaTarget};
pub use secrets::DispatchSecrets;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::objects::WriteTemplate;
use tenure_data::DataStore;
use tenure_engine::Engine;
use tenure_engine::buffers::Buffers;
use tenure_engine::dags::{DagSettings, Dags, STAGING_KEPT};
use tenure_objects::Objects;

use crate::error::Fault;

/// What a server without an object store says.
pub const NO_OBJECT_STORE: &str = "this server has no object store: see dispatch.object_store.url";

/// How a server offers DAGs.
#[derive(Debug, Clone, Default)]
pub struct DispatchConfig {
    /// What the text of a DAG may name.
    pub dags: DagSettings,
    /// Where outputs of tasks are; without it no output is an object.
    pub objects: Option<Arc<Objects>>,
    /// How long staged outputs that nobody has committed are kept; [`STAGING_KEPT`] if not set.
    pub staging_kept: Option<Duration>,
    /// Prefixes that a task may write beside its staging prefixes.
    pub write_prefixes: Vec<WriteTemplate>,
    /// What webhooks are signed with.
    pub secrets: DispatchSecrets,
    /// Functions that run tasks of `runtime: lambda`; without it they wait.
    pub lambda: Option<LambdaTarget>,
    /// Where rows of buffered datasets are; without it nothing can be published.
    pub data: Option<Arc<dyn DataStore>>,
    /// Makes keys for the object store; without it tasks get none.
    pub credentials: Option<CredentialBroker>,
    /// Where workers and functions reach this control plane, without a slash at its end. Without it addresses that they
    /// are told are relative to the one that they know.
    pub base_url: Option<String>,
}

/// What handlers of DAGs have.
#[derive(Debug)]
pub struct Part {
    pub dags: Dags,
    pub config: DispatchConfig,
    buffers: Option<Buffers>,
    pub uploads: Uploads,
}

impl Part {
    /// Begins to route events.
    pub fn start(engine: &Engine, config: &DispatchConfig) -> Self {
        let dags = engine.dags_with(config.dags.clone(), Some(Arc::new(config.secrets.clone())));
        let data = config.data.clone();
        let buffers = data.map(|data| dags.buffers(data, config.objects.clone()));
        if let Some(objects) = &config.objects {
            dags.clean_staging(Arc::clone(objects), config.staging_kept.unwrap_or(STAGING_KEPT));
        }
        Self { dags, config: config.clone(), buffers, uploads: Uploads::default() }
    }

    /// Buffered datasets, where there is a data store.
    pub fn buffers(&self) -> Result<&Buffers, Fault> {
        self.buffers.as_ref().ok_or_else(|| {
            DispatchFault::fault("data_store_unavailable", "this server has no data store: see dispatch.data_store.url")
        })
    }
}
