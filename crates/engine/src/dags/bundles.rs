//! Bundles of code that jobs run.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_bundle::Manifest;
use tenure_core::dag::JobId;
use tenure_dag::Bundles;
use tenure_store::bundles::{BundleRow, NewBundle};
use tenure_store::dags::DeploymentWrites;
use uuid::Uuid;

use super::deploy::document;
use super::{Dags, JobOf, damaged};
use crate::error::EngineError;
use crate::random::random_bits;

/// Bundles of one organisation.
const OF_ORG: usize = 10_000;

/// How often a removal is tried that deployments are in the way of.
const TRIES: usize = 32;

/// How often a bundle is recorded of which another one with the same bytes was removed between the write and the look.
const ADD_TRIES: usize = 3;

/// Why a bundle is not removed.
#[derive(Debug, thiserror::Error)]
pub enum RemoveBundleError {
    #[error("no bundle has this id")]
    NotFound,
    /// Some version of a DAG that can be or become active has a job that runs it.
    #[error(
        "the job '{job}' of the DAG '{dag}' runs this bundle: deploy versions without it until no version that can be \
         returned to has it"
    )]
    InUse { dag: Arc<str>, job: Arc<str> },
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A bundle that was uploaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle {
    pub id: Uuid,
    /// Of the zip file.
    pub sha256: Arc<str>,
    pub bytes: i64,
    pub manifest: Manifest,
}

impl Bundle {
    fn of(row: &BundleRow) -> Result<Self, EngineError> {
        let manifest = serde_json::from_str(&row.manifest).map_err(|error| damaged("udf_bundles", &error))?;
        Ok(Self { id: row.id, sha256: Arc::clone(&row.sha256), bytes: row.bytes, manifest })
    }
}

/// The id of a bundle that is not on record yet, laid out like a random UUID.
pub fn new_bundle_id() -> Uuid {
    Uuid::from_u128(random_bits() & !(0xf << 76) & !(0b11 << 62) | (0x4 << 76) | (0b10 << 62))
}

impl Dags {
    /// The bundle of an organisation with these bytes.
    pub async fn bundle_of(&self, org: &str, sha256: &str) -> Result<Option<Bundle>, EngineError> {
        self.shared().store.bundle_of(org, sha256).await?.as_ref().map(Bundle::of).transpose()
    }

    /// Records a bundle whose bytes are in the object store under this id. Returns the one on record, whose id is another one
    /// if the organisation has the same bytes already; `None` if it has too many.
    pub async fn add_bundle(
        &self,
        org: &str,
        id: Uuid,
        sha256: &str,
        bytes: u64,
        manifest: &Manifest,
    ) -> Result<Option<Bundle>, EngineError> {
        let text = serde_json::to_string(manifest).map_err(|error| damaged("udf_bundles", &error))?;
        let new = NewBundle {
            id,
            sha256: sha256.into(),
            manifest: text.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        };
        for _ in 0..ADD_TRIES {
            self.shared().store.add_bundle(org, &new, OF_ORG).await?;
            if let Some(found) = self.bundle_of(org, sha256).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    pub async fn bundle(&self, org: &str, id: Uuid) -> Result<Option<Bundle>, EngineError> {
        self.shared().store.bundles(org, &[id]).await?.first().map(Bundle::of).transpose()
    }

    /// Removes a bundle from the record, unless a job that is deployed runs it. Its bytes are left to the caller. Nobody can
    /// deploy it meanwhile: both change the deployment.
    pub async fn remove_bundle(&self, org: &str, id: Uuid) -> Result<Bundle, RemoveBundleError> {
        for _ in 0..TRIES {
            let view = self.view(org).await?;
            let bundle = self.bundle(org, id).await?.ok_or(RemoveBundleError::NotFound)?;
            let ids: Vec<JobId> = view.deployment.jobs.keys().copied().collect();
            let runs = |job: &&Arc<JobOf>| job.definition.udf.as_ref().is_some_and(|udf| udf.bundle_id == id);
            if let Some(job) = self.jobs(&ids).await?.iter().find(runs) {
                let (dag, job) = (Arc::clone(&job.dag), Arc::clone(&job.definition.name));
                return Err(RemoveBundleError::InUse { dag, job });
            }
            let document = document(&view.deployment)?;
            let writes = DeploymentWrites { document, removed_bundle: Some(id), ..DeploymentWrites::default() };
            if self.write(org, view.seq, &writes).await? {
                return Ok(bundle);
            }
        }
        Err(EngineError::busy().into())
    }

    /// The bundles that the text of a DAG names, as far as the organisation has them.
    pub(super) async fn known_bundles(&self, org: &str, yaml: &str) -> Result<Bundles, EngineError> {
        let ids: Vec<Uuid> = tenure_dag::bundle_ids(yaml).into_iter().collect();
        let mut known = BTreeMap::new();
        if !ids.is_empty() {
            for row in self.shared().store.bundles(org, &ids).await? {
                let Bundle { id, manifest, .. } = Bundle::of(&row)?;
                let bundle = tenure_dag::Bundle {
                    runtime: manifest.runtime.as_str().into(),
                    entrypoint: manifest.entrypoint.as_str().into(),
                    files: manifest.files.iter().map(|file| file.path.as_str().into()).collect(),
                    env_allowlist: manifest.env_allowlist.iter().map(|name| name.as_str().into()).collect(),
                };
                known.insert(id, bundle);
            }
        }
        Ok(Bundles::Known(known))
    }
}
