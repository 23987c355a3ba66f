//! What a DAG is judged against: the configuration, and the other DAGs of the organisation.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::dag::definition::{Output, Storage, WriteMode};
use tenure_core::dag::{Ranges, Schema};
use tenure_core::retry::{Jitter, RetryPolicy};
use uuid::Uuid;

/// The parts of the configuration that decide what a DAG may say, and how its tasks are retried.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Keys of `dispatch.lambda.functions`.
    pub lambda_functions: BTreeSet<String>,
    /// Names of `dispatch.runtimes`, besides the preset ones.
    pub runtimes: BTreeSet<String>,
    /// When a failed or expired attempt of a task is followed by another one.
    pub retry: RetryPolicy,
}

impl Default for Settings {
    fn default() -> Self {
        let retry =
            RetryPolicy { initial_backoff_ms: 30_000, factor: 2.0, max_backoff_ms: 600_000, jitter: Jitter::Around };
        Self { lambda_functions: BTreeSet::new(), runtimes: BTreeSet::new(), retry }
    }
}

/// Runtimes that are like `worker` in every installation.
pub(crate) const PRESET_RUNTIMES: [&str; 2] = ["ecs_rust", "ecs_python"];

/// The other active DAGs of the organisation, and its bundles. Entries of the DAG that is read are recognised by its
/// name: they are its earlier version.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub datasets: BTreeMap<Arc<str>, Dataset>,
    /// From a dataset that a DAG reads to a dataset that follows from it.
    pub edges: Vec<Edge>,
    pub readers: Vec<Reader>,
    /// Paths of webhooks of the organisation, and the DAG of each.
    pub webhook_paths: BTreeMap<Arc<str>, Arc<str>>,
    /// Paths that other organisations use.
    pub foreign_webhook_paths: BTreeSet<Arc<str>>,
    /// Names of `dispatch.secrets`; `None` if they are not known.
    pub secrets: Option<BTreeSet<Arc<str>>>,
    pub bundles: Bundles,
}

/// A published dataset.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub dag: Arc<str>,
    pub producers: Vec<Output>,
    pub ranges: Ranges,
    pub storage: Option<Storage>,
    pub write_mode: WriteMode,
    pub schema: Option<Schema>,
}

#[derive(Debug, Clone)]
pub struct Edge {
    pub dag: Arc<str>,
    pub from: Arc<str>,
    pub to: Arc<str>,
}

/// A DAG that reads a dataset by its name.
#[derive(Debug, Clone)]
pub struct Reader {
    pub dag: Arc<str>,
    pub dataset: Arc<str>,
    pub ranges: Ranges,
}

#[derive(Debug, Clone, Default)]
pub enum Bundles {
    /// Jobs cannot run bundles.
    #[default]
    Unavailable,
    /// They can, and any bundle is taken to exist: for a check without a server.
    Unchecked,
    Known(BTreeMap<Uuid, Bundle>),
}

/// What the manifest of a bundle says.
#[derive(Debug, Clone)]
pub struct Bundle {
    /// `node` or `python`.
    pub runtime: Arc<str>,
    pub entrypoint: Arc<str>,
    pub files: BTreeSet<Arc<str>>,
    pub env_allowlist: BTreeSet<Arc<str>>,
}
